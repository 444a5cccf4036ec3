"""The crash matrix of ``format("pubsub")``: a real Spark loses processes, tasks, streams and disks, and no message.

    task_faults   what goes wrong inside a task: user code of the query, run by Spark's workers
    sinks         where the rows go, and what of it stands committed
    program       the Spark driver: a process with a JVM of its own that starts and stops queries as it is told
    driver        the harness's handle of such a process: start, ask, kill, look for what it left behind
    run           one query on one subscription through one fault, and the judgement over it
    points        the faults, one by one
    __main__      ``make crash``: points at random moments for some minutes, then a table

The harness holds the emulator, so that it survives every kill. Each run has an emulator of its own, with a clock and
faults of its own. While a run goes on the harness compares what is acknowledged with what stands in the sink (or in the
log of ``delivery="log"``), again and again, and once more when a process was killed.
"""
