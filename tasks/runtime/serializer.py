"""Store a receipt in Prefect as JSON of exactly one `Receipt`."""

from __future__ import annotations

from typing import Any

from prefect.serializers import Serializer
from pydantic import Field

from schemas.run import Receipt
from tasks.run.receipts import SERIALIZER_TYPE, decode_receipt, encode_receipt


class ReceiptSerializer(Serializer):
    """Convert receipts to JSON and back.

    It has no options, so every record names the same serializer, and `tasks.run.receipts` can refuse any
    other without importing Prefect. Importing this module registers it.
    """

    type: str = Field(default=SERIALIZER_TYPE, frozen=True)

    def dumps(self, obj: Any) -> bytes:
        """Encode a receipt as JSON.

        Raises:
            TypeError: `obj` is not a receipt.
            IntegrityError: code `not_json`; JSON would change it.
        """
        if not isinstance(obj, Receipt):
            raise TypeError(f"a task must return a Receipt, not a {type(obj).__name__}")
        return encode_receipt(obj)

    def loads(self, blob: bytes) -> Receipt:
        """Decode the receipt in `blob`.

        Raises:
            IntegrityError: code `foreign_record`; Prefect treats this as a miss.
        """
        return decode_receipt(blob)
