"""Failures of the system that pass, and that say nothing about what is on the disk.

| errno | what is short |
|---|---|
| ENOSPC, EDQUOT | room on the disk |
| EMFILE, ENFILE | file descriptors |
| ENOMEM, ENOBUFS | memory |
| EINTR, EAGAIN | nothing: the call was cut short |

None of them may be taken for damage, and none for a sync that failed for good: what was asked for can be asked again.
"""

import errno

from topics.core.errors import DiskFullError, RetryLaterError, SystemBusyError

_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))
_PASSING = _ROOM | _DESCRIPTORS | {errno.ENOMEM, errno.ENOBUFS, errno.EINTR, errno.EAGAIN}


def is_passing(error: BaseException) -> bool:
    """Whether the same call may well succeed later, with nothing lost meanwhile."""
    return isinstance(error, OSError) and error.errno in _PASSING


def is_full(error: BaseException) -> bool:
    """Whether it is room on the disk that is short."""
    return isinstance(error, OSError) and error.errno in _ROOM


def lacks_descriptors(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _DESCRIPTORS


def as_refusal(error: OSError) -> RetryLaterError:
    """What a client is told of a failure that passes."""
    return DiskFullError() if is_full(error) else SystemBusyError(error.strerror or str(error))
