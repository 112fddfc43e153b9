"""A tiny torch model that reads crops as a trainer does."""

from __future__ import annotations

from typing import Any


def tiny_model(torch: Any, crop: int, vocabulary: int, width: int = 32) -> Any:
    """One causal attention layer; contexts of a crop do not see one another. Seeded, on one thread."""
    nn = torch.nn

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(crop, width)
            self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
            self.head = nn.Linear(width, vocabulary)

        def forward(self, inputs: Any, segments: Any, positions: Any) -> Any:
            hidden = self.tokens(inputs) + self.positions(positions)
            later = torch.ones(crop, crop, dtype=torch.bool).triu(1)
            hidden_from = later | (segments[:, :, None] != segments[:, None, :])
            mixed, _ = self.attention(
                hidden, hidden, hidden, attn_mask=hidden_from.repeat_interleave(2, 0), need_weights=False
            )
            return self.head(hidden + mixed)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Model()
