"""Run a container of an image: from a template if there is one, else the usual way."""

from scrun.cli.parse import Parsed
from scrun.client.supervisor_name import place


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Run a container of an image (`scrun.client.template`)."""
    if not place().task:
        from scrun.commands.run_image import run as run_image

        return run_image(parsed, argv)
    from scrun.client.anchored import open_closed_descriptors
    from scrun.client.template import Template

    open_closed_descriptors()
    with Template(parsed) as template:
        if template.content is not None:
            from scrun.client.replay import replay

            if (status := replay(template, parsed, place())) is not None:
                return status
        from scrun.commands.run_image import run as run_image

        return run_image(parsed, argv, template.made)
