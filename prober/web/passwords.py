"""Check of passwords against bcrypt hashes in a thread, one at a time; correct ones are remembered.

One check takes 50 ms of a core or more, and guessing must not slow the prober down: the thread has the lowest priority, few
checks may wait for it, and a correct password is recognised by a keyed digest.
"""

import asyncio
import hmac
import os
import secrets
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from prober.web.token_bucket import TooMany

MAX_REMEMBERED = 100
MAX_WAITING = 8
MAX_BCRYPT_BYTES = 72  # of a password that bcrypt uses
LOWEST_PRIORITY = 19


class Passwords:
    """Checks passwords and remembers keyed digests of correct ones. `close` ends the thread."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "passwords", initializer=_lower_priority)

    def is_known(self, users: dict[str, str], user: str, password: str) -> bool:
        """True if this password was correct before, for the user's current hash."""
        digest = self._digest(user, users.get(user, ""), password)
        if digest not in self._known:
            return False
        self._known.move_to_end(digest)
        return True

    async def is_correct(self, users: dict[str, str], user: str, password: str) -> bool:
        """True if the user has this password. Unknown users take the same time. Raises TooMany."""
        if self._waiting >= MAX_WAITING:
            raise TooMany(1.0, "too many password checks")
        hashed = users.get(user) or max(users.values(), key=lambda hashed: int(hashed.split("$")[2]))
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, _matches, password, hashed)
        work.add_done_callback(self._done)
        is_correct = await asyncio.shield(work) and user in users
        if is_correct:
            self._known[self._digest(user, hashed, password)] = None
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return is_correct

    def close(self) -> None:
        """End the thread after the current check."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(self, _: object) -> None:
        self._waiting -= 1

    def _digest(self, user: str, hashed: str, password: str) -> bytes:
        parts = b"\0".join(part.encode("utf-8", "surrogatepass") for part in (user, hashed))
        return hmac.digest(self._key, parts + b"\0" + password.encode("utf-8", "surrogatepass"), "sha256")


def _matches(password: str, hashed: str) -> bool:
    """True if the password has this hash, compared in constant time by the library."""
    import bcrypt  # here, as most probers have no passwords

    try:
        return bcrypt.checkpw(password.encode("utf-8", "surrogatepass")[:MAX_BCRYPT_BYTES], hashed.encode())
    except ValueError:  # it contains NUL
        return False


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
