"""`topics router ls`."""

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
    source: Annotated[str | None, Parameter(help="Only those that read this topic.")] = None,
    dest: Annotated[str | None, Parameter(help="Only those that write to this topic.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List routers, in the order of their names.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
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


# `topics router show`.


def show(router: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show what a router does, how far it got, and what holds it up.

    Parameters
    ----------
    router
        Its name, such as 'orders->archive'.
    """
    with connected(server) as client:
        state = client.get_router(router)
    if output == "json":
        json_line(state)
    elif output == "raw":
        line(str(state.lag))
    else:
        told = msgspec.to_builtins(state)
        told.pop("performance", None)
        fields((name.replace("_", " "), "none" if value is None else value) for name, value in told.items())
    return 0


# `topics router create`.


def create(
    source: str,
    dest: str,
    /,
    *,
    name: Annotated[str | None, Parameter(help="The router's name.", show_default=lambda _: "'source->dest'")] = None,
    tag: Annotated[str | None, Parameter(help="Only records with this tag; a * at the end is any ending.")] = None,
    guarantee: Annotated[
        Literal["at_least_once", "exactly_once"], Parameter(help="How often a copy is made when there is a crash.")
    ] = "at_least_once",
    from_: Annotated[
        int | None,
        Parameter(name="--from", help="The first seq to copy.", show_default=lambda _: "what is appended from now on"),
    ] = None,
    preserve_node: Annotated[bool, Parameter(help="Whether a copy names the writer of its record.")] = True,
    preserve_tag: Annotated[bool, Parameter(help="Whether a copy has the tag of its record.")] = True,
    create_dest: Annotated[bool, Parameter(help="Whether to create a destination that is not there.")] = True,
    allow_cycle: Annotated[bool, Parameter(negative="", show_default=False, help="Let records go round.")] = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Copy every record of one topic into another from now on, or change how.

    Parameters
    ----------
    source
        The topic that is read.
    dest
        The topic that is written to.
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


# `topics router rm`.


def rm(*routers: Annotated[str, Parameter(required=True)], output: Output = "table", server: Server = HERE) -> int:
    """Delete routers; what they copied stays.

    Parameters
    ----------
    routers
        Their names.
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
        raise CommandError(f"there is no router {', '.join(missing)}: `topics router ls` lists those there are")
    return 0
