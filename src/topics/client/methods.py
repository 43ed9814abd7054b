"""Makes methods of functions, so that both clients have the same ones with the same signatures and words."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args


def as_method(method: Callable[..., Any], build: Callable[..., Any], returns: object = None) -> None:
    """Makes `method` tell of itself what `build` does: its name, its words, and its parameters behind `self`.

    What it returns is, unless told, what the request that `build` returns is answered with.
    """
    functools.update_wrapper(method, build)
    # inspect would look through the wrapper, and take the topic for `self`.
    del method.__wrapped__  # type: ignore[attr-defined]
    described = inspect.signature(build)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    returned = returns or get_args(described.return_annotation)[0]
    method.__signature__ = described.replace(  # type: ignore[attr-defined]
        parameters=[itself, *described.parameters.values()], return_annotation=returned
    )
    method.__annotations__ = {**build.__annotations__, "return": returned}
