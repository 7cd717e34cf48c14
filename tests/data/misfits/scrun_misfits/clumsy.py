"""One whose engine fails in a way that it does not foresee."""

from scrun_none.engine import NoEngine, configure

from scrun.supervisor.contracts.engine import JobRequest

__all__ = ["configure", "engine"]

plugin_type = "engine/clumsy"
plugin_name = "Clumsy"
plugin_version = "1.0.0"


class ClumsyEngine(NoEngine):
    """It gets no job."""

    name = "clumsy"

    def allocate(self, request: JobRequest) -> None:  # type: ignore[override]
        """Fail."""
        raise KeyError(request.container)


def engine(root: str, configuration: None) -> ClumsyEngine:
    """Return one."""
    return ClumsyEngine()
