"""What launches a container: a shim, or Slurm itself by `srun --container` (`[slurm] launch`)."""

from collections.abc import Mapping, Sequence
from typing import Literal

from scrun.core.errors import EngineError, SettingsError
from scrun.settings.slurm.requests import Release, check_mpi
from scrun.supervisor.engines.slurm.job import SrunJob
from scrun.supervisor.engines.slurm.shim_site import HAS_OCI_CONF, SiteConfs
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.code import LACKS_PYTHON

Launch = Literal["auto", "container", "shim"]

_NODES = "SLURM_JOB_NODELIST"


class Launching:
    """How an engine's containers are launched, and what it has found on which nodes."""

    def __init__(self, asked: Launch, confs: SiteConfs) -> None:
        self.by_slurm = asked == "container"
        self._asked = asked
        self._confs = confs
        self._with: set[str] = set()  # nodes, as Slurm writes a job's, that have had a shim
        self._with_conf: set[str] = set()  # those that have an oci.conf, which we have not
        self._without: dict[str, str] = {}  # those without a Python, and what was said

    def check(self, wanted: Mapping[str, str], options: Sequence[str], version: Release) -> None:
        """Refuse MPI that would not reach the container, before a job is asked for."""
        if self.by_slurm:
            check_mpi(wanted, version)
        elif self._confs.here is not None:
            check_pmi(options, "the oci.conf")

    def known_lack(self, job: Mapping[str, str]) -> str:
        """Return why no shim is tried on the nodes of a job with such variables, or ""."""
        return self._without.get(job.get(_NODES, ""), "")

    async def lack(self, job: Mapping[str, str], step: ShimStep) -> str:
        """Return why `srun --container` has to launch a container after all, or "".

        That takes something that a node lacks: what fails in passing is an error, as with `launch
        = "shim"`. Only the first shim on some nodes is waited for, because it starts while the
        bundle is staged; but those of several tasks always, as they have to connect to us.

        Raises:
            EngineError: No shim started, and `srun --container` would not help.
        """
        nodes = job.get(_NODES, "")
        if not step.is_gathered and (self._asked == "shim" or nodes in self._with):
            return ""
        try:
            await step.ranks()
        except EngineError as error:
            if not step.is_unreached and (self._asked == "shim" or not step.is_lacking):
                raise
            if nodes and any(words in str(error) for words in LACKS_PYTHON):
                self._without[nodes] = str(error)
            return str(error)
        if nodes and not step.is_gathered:
            self._with.add(nodes)
        return ""

    async def fall_back(
        self, job: SrunJob, journal: Journal, wanted: Mapping[str, str], version: Release,
        reason: str,
    ) -> None:  # fmt: skip
        """Check that `srun --container` can do what shims cannot, and say so in the log."""
        await self.need_oci_conf(
            job, f"{reason}; srun --container would need an oci.conf on the nodes"
        )
        journal.write("info", f"{reason}: launched by srun --container")
        check_mpi(wanted, version, because=reason)

    async def need_oci_conf(
        self, job: SrunJob,
        otherwise: str = 'launch = "container" needs an oci.conf on the nodes: write it, or '
        'set launch = "auto"',
    ) -> None:  # fmt: skip
        """Refuse a container by `srun --container` where no node knows how to make one.

        Without an oci.conf slurmstepd of 22.05 runs the program on the node itself. Where this
        machine has none, a step asks those of a set of nodes, once. Raises EngineError if the
        nodes have no oci.conf.
        """
        nodes = job.environment.get(_NODES, "")
        if self._confs.here is not None or nodes in self._with_conf:
            return
        answers = await job.ask(lambda _: HAS_OCI_CONF)
        if any("none" in answer for answer in answers):
            raise EngineError(otherwise)
        if nodes:
            self._with_conf.add(nodes)


def check_pmi(options: Sequence[str], conf: str) -> None:
    """Refuse PMI where the commands of an oci.conf make the container: they pass no descriptor on.

    Raises:
        SettingsError: PMI is asked for.
    """
    if any(option.lower() == "--mpi=pmi2" for option in options):
        raise SettingsError(
            f"SCRUN_MPI_TYPE=pmi2: cannot work: the commands of {conf} do not pass its "
            "descriptor on; leave it out, and start the ranks with mpirun in the container"
        )
