"""Instants as the protocol writes them: RFC 3339 with an offset (RQ-5).

Owns the nanoseconds, which `datetime` has no room for. Refuses a time without an offset: it could
be any of many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Optional

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):\d\d):(\d\d)(?:\.(\d{1,18}))?"
    r"(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The same for times that are in UTC and do not say so, which are quicker to reckon with.
_BARE_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, order=True)
class Instant:
    """A point in time, to the nanosecond."""

    #: Since 1970 in UTC.
    nanoseconds: int

    @staticmethod
    def read(text: str) -> Optional[Instant]:
        """Nothing where the text names no instant."""
        found = _RFC3339.fullmatch(text)
        if found is None:
            return None
        day, minute, second, fraction, sign, hours, minutes = found.groups()
        # A leap second is the end of the one before it, as most clocks show it.
        second = "59" if second == "60" else second
        try:
            at = datetime.fromisoformat(f"{day}T{minute}:{second}")
            if sign:
                offset = timedelta(hours=int(hours), minutes=int(minutes))
                at = at + offset if sign == "-" else at - offset
        except (ValueError, OverflowError):
            # No such day; or before the year 1 or after 9999 once it is in UTC.
            return None
        since = at - _BARE_EPOCH
        whole = since.days * 86400 + since.seconds
        return Instant(whole * 10**9 + int((fraction or "")[:9].ljust(9, "0")))

    @property
    def datetime(self) -> datetime:
        """In UTC; what is smaller than a microsecond is lost."""
        return _EPOCH + timedelta(microseconds=self.nanoseconds // 1000)

    def __str__(self) -> str:
        whole, fraction = divmod(self.nanoseconds, 10**9)
        text = (_EPOCH + timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S")
        digits = f".{fraction:09}".rstrip("0").rstrip(".")
        # Years below 1000 have no leading zeroes in some C libraries.
        return f"{text.rjust(19, '0')}{digits}Z"
