"""Run a container of an image: from a template if there is one, else the usual way."""

from scrun.cli.parse import Parsed
from scrun.client.supervisor_name import place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

    from scrun.client.replay import Stay


def run(parsed: Parsed) -> int:
    """Run a container of an image (`scrun.client.template`)."""
    if not place().task:
        from scrun.commands.run_image import run as run_image

        return run_image(parsed)
    from scrun.client.template import Template

    with Template(parsed) as template:
        if template.content is not None:
            from scrun.client.replay import Replayed, replay

            def give_over(container: Replayed, callers: "list[socket]") -> "Stay | None":
                from scrun.client.give_over import give_over

                return give_over(container, parsed, callers)

            if (status := replay(template, place(), give_over)) is not None:
                return status
        from scrun.commands.run_image import run as run_image

        return run_image(parsed, template.made)
