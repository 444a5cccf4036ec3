"""The crash test of the pipeline: everything that a job is made of is killed at random, and every row arrives once.

    layout        how many rows there are, how they are cut, and which splits no stage can digest
    program       the job: Spark, in one of its ways -> map -> flat_map -> Parquet files; a process, which resumes
    harness       starts the program, kills workers, executors, the program and the broker, and starts it again
    verdict       what must hold when the job is done
    __main__      ``make crash-pipeline``: one job after the other for some minutes, then a table

Kills happen at random states of progress rather than at random times, so that on any machine they hit a job at work. On
top of them each program is told one point of the sink's protocol at which a worker of its own dies.
"""
