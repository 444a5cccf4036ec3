import builtins

import pytest
from pipeline_support import TableSource, make_job, output_ids, sink

from solstice.errors import MissingExtraError


def test_without_the_extra_the_ray_runner_says_how_to_get_it(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_ray(name, *rest, **options):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return real(name, *rest, **options)

    monkeypatch.setattr("importlib.import_module", lambda name: without_ray(name))
    job = make_job(tmp_path, TableSource(splits=1), runner="ray")
    job.stages[0].sink(sink(tmp_path))
    with pytest.raises(MissingExtraError, match=r"solstice-spark\[ray\]"):
        job.run()


def test_functions_of_threads_leave_marks_where_a_test_sees_them(tmp_path):
    seen = []

    def work(table):
        seen.append(len(table))
        return table

    job = make_job(tmp_path, TableSource(splits=3), runner="inprocess")
    job.stages[0].map(work, workers=2).sink(sink(tmp_path))
    job.run()
    assert seen == [10, 10, 10]
    assert output_ids(tmp_path) == list(range(30))


def test_a_job_in_threads_resumes_in_processes(tmp_path):
    def job(runner, fails):
        def work(table):
            if fails and table["id"][0].as_py() == 20:
                raise ValueError("no")
            return table

        job = make_job(tmp_path, TableSource(splits=4), runner=runner, on_error="fail")
        job.stages[0].map(work, retries=0, name="work").sink(sink(tmp_path))
        return job

    with pytest.raises(Exception, match="no"):
        job("inprocess", True).run()
    again = job("local", False)
    again.replay()
    again.run()
    assert output_ids(tmp_path) == list(range(40))
