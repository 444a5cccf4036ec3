"""Workers as actors of a Ray cluster.

The cluster is the one that this process is connected to, or the one that ``RAY_ADDRESS`` names, or one that is started
on this machine and ended with the run. An actor asks for no CPUs of its own: how many workers there are is the job's
business, and one that waited for a free CPU could hold up the stages that would free it.
"""

import contextlib
import os
import pickle
import sys
import threading
import time
from typing import Any

from solstice._core.extras import require
from solstice.errors import ConfigError, LeaseLostError, PipelineError
from solstice.pipeline import _closures
from solstice.pipeline._rate_limit import RateLimiter
from solstice.pipeline._ray_token import ask_for_token, use_token
from solstice.pipeline._runner import Runner, WorkerHandle
from solstice.pipeline._worker import StageWorker, WorkerSpec
from solstice.pipeline._worker_process import EXIT_GAVE_UP, pickled_error

_ENDED, _FENCED, _FAILED = "ended", "fenced", "failed"
_LIMITER = "solstice-rate-{job}-{stage}"


class RayRunner(Runner):
    """Starts actors."""

    def __init__(self, job: str) -> None:
        if "RAY_ADDRESS" in os.environ:
            use_token()
        else:
            ask_for_token()
        self._ray = require("ray", "ray")
        self._job = job
        self._limiters: dict[str, Any] = {}
        self._started = not self._ray.is_initialized()
        if self._started:
            _connect(self._ray)

    def start(self, spec: WorkerSpec) -> "WorkerActor":
        """Start one."""
        return WorkerActor(self._ray, spec)

    def limiter(self, stage: str) -> RateLimiter:
        """A rate that an actor keeps."""
        name = _LIMITER.format(job=self._job, stage=stage)
        if stage not in self._limiters:
            remote = self._ray.remote(num_cpus=0)(_Limiter)
            self._limiters[stage] = remote.options(name=name).remote()
        return RayRateLimiter(name)

    def close(self) -> None:
        """End the actors of rates, and the cluster if it was started for this run."""
        for actor in self._limiters.values():
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()


def _connect(ray: Any) -> None:
    own = "RAY_ADDRESS" not in os.environ
    try:
        ray.init(configure_logging=False, **({"include_dashboard": False} if own else {}))
    except Exception as error:  # Ray raises a bare one when its node does not start in time
        raise ConfigError(
            f"the Ray cluster {os.environ.get('RAY_ADDRESS', 'of this machine')} cannot be used: {error}",
            option="runner",
            value="ray",
            remedy="Is RAY_ADDRESS right, and does RAY_AUTH_TOKEN, or ~/.ray/auth_token, hold the cluster's token?",
        ) from error


class WorkerActor(WorkerHandle):
    """One worker as an actor; it dies with the driver."""

    def __init__(self, ray: Any, spec: WorkerSpec) -> None:
        super().__init__(spec.worker)
        self._ray = ray
        body = pickle.dumps((sys.path, _closures.dumps(spec, f"the function of stage {spec.stage!r}")))
        remote = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=4)(_Actor)
        self._actor = remote.options(scheduling_strategy="SPREAD").remote(body)
        self._pid_ref = self._actor.pid.remote()
        self._pid = 0
        self._ready_ref = self._actor.wait_until_ready.remote()
        self._ended = self._actor.run.remote()
        self._ending = ""

    @property
    def pid(self) -> int:
        """The process of the actor, on whatever machine; 0 until it is known."""
        if not self._pid and self._ray.wait([self._pid_ref], timeout=0)[0]:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._pid = self._ray.get(self._pid_ref)
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether it still works."""
        return not self._ray.wait([self._ended], timeout=0)[0]

    @property
    def ending(self) -> str:
        """How it ended."""
        return self._ending

    def stop(self) -> None:
        """Ask it to end."""
        self._actor.stop.remote()

    def kill(self) -> None:
        """End it now."""
        self._ray.kill(self._actor)

    def close(self) -> Exception | None:
        """Wait for the end, and give the actor's process back."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self.ready = bool(self._ray.wait([self._ready_ref], timeout=0)[0]) and self._ray.get(self._ready_ref)
        try:
            how, error = self._ray.get(self._ended)
        except self._ray.exceptions.RayError as died:
            self._ending = f"its process: {' '.join(str(died).split())[:300]}"
            return None
        finally:
            self.kill()
        self.orderly, self._ending = how == _ENDED, how
        if how != _FAILED:
            return None
        failure = pickle.loads(error)
        return failure if isinstance(failure, Exception) else PipelineError(str(failure))


class _Actor:
    """The actor of a worker; ``run`` and ``stop`` come in different threads."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._stop = threading.Event()
        self._ready = threading.Event()

    def wait_until_ready(self) -> bool:
        return self._ready.wait()

    def pid(self) -> int:
        return os.getpid()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> tuple[str, bytes]:
        try:
            search_path, spec = pickle.loads(self._body)
            sys.path[:] = [*search_path, *(path for path in sys.path if path not in search_path)]
            worker = StageWorker(_closures.loads(spec), self._stop, abandon=_abandon, own_process=True)
            worker.run(on_ready=self._ready.set)
        except LeaseLostError:
            return _FENCED, b""
        except Exception as error:  # noqa: BLE001 - the border of the process: it goes on in the driver
            return _FAILED, pickled_error(error)
        return _ENDED, b""


def _abandon() -> None:
    sys.stderr.flush()
    os._exit(EXIT_GAVE_UP)


class RayRateLimiter(RateLimiter):
    """Asks the actor that has the rate."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._actor: Any = None

    def reserve(self, cost_s: float) -> float:
        """Take the next free moment."""
        import ray

        self._actor = self._actor or ray.get_actor(self._name)
        wait_s: float = ray.get(self._actor.reserve.remote(cost_s))
        return wait_s


class _Limiter:
    """The moment until which a rate is spent."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def reserve(self, cost_s: float) -> float:
        now_s = time.monotonic()
        start_s = max(now_s, self._until_s)
        self._until_s = start_s + cost_s
        return start_s - now_s
