"""`topics router`: routers, which copy the records of one topic into another."""

from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.failures import CommandError
from topics.cli.output import Output, fields, json_line, line, print_result, print_table
from topics.cli.server_connection import HERE, Server, connected
from topics.cli.topic_options import tag_match


def ls(
    prefix: str = "",
    /,
    *,
    source: Annotated[str | None, Parameter(help="List only routers with this source.")] = None,
    dest: Annotated[str | None, Parameter(help="List only routers with this destination.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List routers by name.

    Parameters
    ----------
    prefix
        List only routers with this prefix.
    """
    with connected(server) as client:
        print_table(
            output,
            ("ROUTER", "SOURCE", "DEST", "GUARANTEE", "COPIES"),
            (
                ((one.router, one.source, one.dest, one.guarantee.value, one.forwarded_total), one)
                for one in client.all_routers(prefix, source=source, dest=dest)
            ),
        )
    return 0


def show(router: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show the config, the progress and the errors of a router.

    Parameters
    ----------
    router
        The name of the router, such as 'orders->archive'.
    """
    with connected(server) as client:
        state = client.get_router(router)
    if output == "json":
        json_line(state)
    elif output == "raw":
        line(str(state.lag))
    else:
        reported = msgspec.to_builtins(state)
        reported.pop("performance", None)
        fields((name.replace("_", " "), "none" if value is None else value) for name, value in reported.items())
    return 0


def create(
    source: str,
    dest: str,
    /,
    *,
    name: Annotated[
        str | None, Parameter(help="The name of the router.", show_default=lambda _: "'source->dest'")
    ] = None,
    tag: Annotated[
        str | None, Parameter(help="Copy only records with this tag; a * at the end matches any suffix.")
    ] = None,
    guarantee: Annotated[
        Literal["at_least_once", "exactly_once"], Parameter(help="The delivery guarantee across crashes.")
    ] = "at_least_once",
    from_: Annotated[
        int | None,
        Parameter(name="--from", help="The first seq to copy.", show_default=lambda _: "the next record"),
    ] = None,
    preserve_node: Annotated[bool, Parameter(help="Copy the node of records.")] = True,
    preserve_tag: Annotated[bool, Parameter(help="Copy the tag of records.")] = True,
    create_dest: Annotated[bool, Parameter(help="Create a missing destination.")] = True,
    allow_cycle: Annotated[bool, Parameter(negative="", show_default=False, help="Allow a cycle of routers.")] = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Create or change a router, which copies the records of one topic into another.

    Parameters
    ----------
    source
        The source topic.
    dest
        The destination topic.
    """
    with connected(server) as client:
        answer = client.put_router(
            source,
            dest,
            name=name,
            filter=None if tag is None else tag_match(tag),
            guarantee=guarantee,
            from_seq=None if from_ is None else max(from_ - 1, 0),
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            allow_cycle=allow_cycle,
        )
    print_result(answer, output, f"{'created' if answer.created else 'changed'} {answer.router}", answer.router)
    return 0


def rm(*routers: Annotated[str, Parameter(required=True)], output: Output = "table", server: Server = HERE) -> int:
    """Delete routers and keep their copies.

    Parameters
    ----------
    routers
        The names of the routers.
    """
    missing = []
    with connected(server) as client:
        for router in routers:
            answer = client.delete_router(router)
            if answer.deleted:
                print_result(answer, output, f"deleted {router}", router)
            else:
                missing.append(router)
    if missing:
        raise CommandError(f"router {', '.join(missing)} does not exist. List routers with `topics router ls`")
    return 0
