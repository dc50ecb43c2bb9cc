"""The functions of the native code, `plan.c` and `decide.c`, as ctypes calls them."""

import ctypes
import sysconfig
from collections import Counter
from ctypes import POINTER, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sluice.state.errors import SluiceError
from sluice.state.quotas.kinds import Family
from sluice_native.build import BUILT, DIGEST, is_whole, libraries

ABI = 3
"""The number of the interface of C and Python; `text.h` has the same. A change of either side's raises both."""

INTERFACE = "8e7428bc0192"
"""The digest of that interface, which a test compares."""

DONE, DECLINED, UNKNOWN = 0, 1, 2
"""Outcomes of an event."""

FAMILIES = {Family.BYTES: 1, Family.REQUEST_TIME: 2, Family.MUTATIONS: 3, Family.REQUESTS: 4}
"""The families of charges; native code charges no others."""

HAS_USER, HAS_CLIENT_ID, HAS_TOPIC = 1, 2, 4
"""The names that a counter's key has behind its prefix."""

MAX_KEY_BYTES = 1024

_CURE = "install sluice-kafka-native again, with a C compiler where no wheel has the library, or run ./scripts/setup"

declined = Counter[str]()
"""The "events", "pages" and "groups" of parts that native code has left to Python in this process."""


class NativeLibraryError(SluiceError):
    """The native library can't be used; the message says why, and what to do."""


class NativeSettings(ctypes.Structure):
    """The planner's settings, as `Settings` in `plan.c`."""

    _fields_ = (
        ("pages", c_int32),
        ("max_touched", c_int32),
        ("max_mutated", c_int32),
        ("max_event", c_int32),
        ("max_future_ms", c_int64),
        ("max_past_ms", c_int64),
        ("max_partitions", c_int64),
        ("max_awaited", c_int64),
        ("points", c_double),
        ("network_points", c_double),
        ("divisor", c_double),
        ("seed", c_uint64),
    )


class ChargerSettings(ctypes.Structure):
    """The settings of deciding, as `Settings` in `decide.c`."""

    _fields_ = (
        ("pages", c_int32),
        ("max_entities", c_int32),
        ("samples", c_int32),
        ("most_gateways", c_int32),
        ("window_ms", c_int64),
        ("mutation_samples", c_int64),
        ("mutation_window_ms", c_int64),
        ("span_ms", c_int64),
        ("idle_ms", c_int64),
        ("max_record", c_int64),
        ("max_awaited", c_int64),
        ("overhead", c_int64),
        ("burst", c_double),
        ("span_s", c_double),
        ("seed", c_uint64),
    )


_TEXT = (ctypes.c_char_p, c_size_t)
_POINTERS = POINTER(ctypes.c_char_p)
_FUNCTIONS = {
    "native_abi": (c_int, ()),
    "native_sources": (ctypes.c_char_p, ()),
    "plan_new": (c_void_p, (POINTER(NativeSettings), *_TEXT, *_TEXT, *_TEXT)),
    "plan_free": (None, (c_void_p,)),
    "plan_api": (c_int, (c_void_p, *_TEXT, c_int, c_int, c_int)),
    "plan_name": (c_int, (c_void_p, c_int, *_TEXT)),
    "plan_member": (c_int, (c_void_p, c_int, c_int, c_size_t, c_size_t, *_TEXT, *_TEXT, c_uint32)),
    "plan_begin": (c_int, (c_void_p, *_TEXT, c_int64, c_int64)),
    "plan_tighten": (c_int, (c_void_p, *_TEXT, *_TEXT)),
    "plan_forget": (None, (c_void_p,)),
    "plan_make": (c_int, (c_void_p, c_int)),
    "plan_counter": (c_int, (c_void_p, *_TEXT, *_TEXT, *_TEXT, c_int, c_int, *_TEXT)),
    "plan_mode": (c_int, (c_void_p, c_int, c_int, ctypes.c_char_p, POINTER(c_uint32))),
    "plan_keep": (c_int, (c_void_p, *_TEXT, c_int)),
    "plan_key_of": (c_size_t, (c_void_p, c_void_p)),
    "plan_events": (
        c_int64,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_uint64, POINTER(c_int32)),
    ),
    "plan_add": (c_int, (c_void_p, c_int, c_int, *_TEXT)),
    "plan_size": (c_size_t, (c_void_p, POINTER(c_uint32))),
    "plan_bytes": (c_uint64, (c_void_p,)),
    "plan_held": (c_uint64, (c_void_p,)),
    "plan_take": (c_size_t, (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t)),
    "doubles_init": (None, (c_void_p,)),
    "doubles_text": (c_size_t, (c_void_p, c_size_t, c_void_p)),
    "decide_new": (c_void_p, (POINTER(ChargerSettings),)),
    "decide_free": (None, (c_void_p,)),
    "decide_kind": (c_int, (c_void_p, *_TEXT, c_int, c_int, c_int)),
    "decide_topic": (c_int, (c_void_p, *_TEXT, c_int, c_int)),
    "decide_pages": (
        c_int,
        (
            c_void_p,
            c_uint32,
            POINTER(c_int32),
            _POINTERS,
            POINTER(c_uint64),
            POINTER(c_uint32),
            _POINTERS,
            POINTER(c_uint64),
            POINTER(c_uint8),
        ),
    ),
    "combine_partial_decisions": (c_int, (c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_uint64))),
    "decide_base_ms": (c_int64, (c_void_p,)),
    "decide_output": (c_void_p, (c_void_p, c_int, c_int, POINTER(c_uint64))),
    "decide_partial_decisions": (c_void_p, (c_void_p, c_int, POINTER(c_uint64))),
    "decide_waits": (c_uint32, (c_void_p,)),
    "decide_evicted": (c_uint32, (c_void_p, c_int)),
    "decide_gateway": (c_void_p, (c_void_p, c_uint32, POINTER(c_uint64), POINTER(c_int64))),
}


class NativeCode(NamedTuple):
    """The library that this process has loaded, and its file; or the reason why it has none."""

    library: ctypes.CDLL | None
    path: Path | None = None
    reason: str | None = None


@cache
def native_code() -> NativeCode:
    """The library of this release, which is looked for once: workers have that of the process that forks them."""
    try:
        path = _found()
        return NativeCode(load(path, DIGEST or path.name.split("-")[1]), path)
    except (OSError, NativeLibraryError) as error:
        return NativeCode(None, reason=str(error))


def native_library() -> ctypes.CDLL | None:
    """The library of this release; None if there is none, or it can't be used, as `native_code` says."""
    return native_code().library


def _found() -> Path:
    """The file of the library. Raises NativeLibraryError and OSError."""
    found = libraries()
    for path in found:
        if is_whole(path):
            return path
    if found:
        raise NativeLibraryError(f"{found[0]} is damaged; delete it, and {_CURE}")
    if others := libraries(digest=None):
        raise NativeLibraryError(f"{others[0]} is of another release; {_CURE}")
    raise NativeLibraryError(f"there is none for {sysconfig.get_platform()} in {BUILT}; {_CURE}")


@cache
def load(path: Path, sources: str | None = None) -> ctypes.CDLL:
    """The library in this file, of sources with this digest, if it is given. Raises NativeLibraryError and OSError."""
    library = ctypes.CDLL(str(path))
    try:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise NativeLibraryError(f"{path} is not Sluice's, or of another release; {_CURE}") from error
    if library.native_abi() != ABI or sources not in (None, library.native_sources().decode()):
        raise NativeLibraryError(f"{path} is of another release; {_CURE}")
    table = [word for power in range(-292, 325) for word in divmod(_power_of_ten(power), 2**64)]
    library.doubles_init((c_uint64 * len(table))(*table))
    return library


def _power_of_ten(power: int) -> int:
    """The first 128 bits of a power of ten, rounded up."""
    shift = (power * 1_741_647 >> 19) - 127  # by which 10**power is shifted to the right
    numerator, denominator = 10 ** max(power, 0) << max(-shift, 0), 10 ** max(-power, 0) << max(shift, 0)
    rounded_up: int = -(-numerator // denominator)
    return rounded_up
