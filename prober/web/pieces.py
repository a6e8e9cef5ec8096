"""A response whose body is written piece by piece, as fast as the client takes it."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from aiohttp import web

WRITE_BYTES = 1 << 16  # at once: what a connection holds for a client that does not read
STALL_S = 5.0  # for a client to take WRITE_BYTES; a slower one is cut

Piece = bytes | bytearray | memoryview


class PiecewiseResponse(web.StreamResponse):
    """A response in pieces, which several responses may share. A client that stalls ends it with TimeoutError.

    pieces: the body; the next is not asked for until the client has taken the one before, up to what the kernel buffers
    """

    def __init__(
        self,
        pieces: Iterable[Piece] | AsyncIterator[Piece],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status=status, headers=headers)
        self.pieces = pieces
        if isinstance(pieces, Sequence):
            self.content_length = sum(map(len, pieces))

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the body and end the response."""
        if self._eof_sent:
            return
        if not self._must_be_empty_body:
            if isinstance(self.pieces, AsyncIterator):
                async for piece in self.pieces:
                    await self._write(piece)
            else:
                for piece in self.pieces:
                    await self._write(piece)
        await super().write_eof()

    async def _write(self, piece: Piece) -> None:
        assert self._payload_writer is not None
        for start in range(0, len(piece), WRITE_BYTES):
            async with asyncio.timeout(STALL_S):
                await self.write(memoryview(piece)[start : start + WRITE_BYTES])
                await self._payload_writer.drain()
