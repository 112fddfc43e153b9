"""How Prefect stores a receipt: as JSON of exactly one `Receipt`, and nothing else."""

from __future__ import annotations

from typing import Any

from prefect.serializers import Serializer
from pydantic import Field

from schemas.run import Receipt
from tasks.run.receipts import SERIALIZER_TYPE, decode_receipt, encode_receipt


class ReceiptSerializer(Serializer):
    """Receipts to JSON and back.

    It has no options, so every record names the same serializer, and `tasks.run.receipts` can refuse any
    other without importing Prefect. Importing this module registers it.
    """

    type: str = Field(default=SERIALIZER_TYPE, frozen=True)

    def dumps(self, obj: Any) -> bytes:
        """The receipt as JSON.

        Raises:
            TypeError: `obj` is no receipt.
            IntegrityError: code `not_json`; JSON would change it.
        """
        if not isinstance(obj, Receipt):
            raise TypeError(f"a task must return a Receipt, not a {type(obj).__name__}")
        return encode_receipt(obj)

    def loads(self, blob: bytes) -> Receipt:
        """The receipt in `blob`.

        Raises:
            IntegrityError: code `foreign_record`; Prefect takes that as a miss.
        """
        return decode_receipt(blob)
