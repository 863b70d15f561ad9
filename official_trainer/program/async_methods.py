"""A Program's calls in an event loop: each `…_async` method runs the method of its name in a thread.

Owns: these methods. Does not own: the methods they call (`program.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from official_trainer.lazy import keras


class AsyncMethods:
    """Calls that leave the event loop free, so that several programs train in one; one program makes one at a time.

    If the task that awaits a call is cancelled, the thread goes on to the end of the call; a callback may end `fit`.
    """

    fit: Callable[..., Any]
    evaluate: Callable[..., Any]
    predict: Callable[..., Any]
    train_on_batch: Callable[..., Any]
    test_on_batch: Callable[..., Any]
    predict_on_batch: Callable[..., Any]

    async def fit_async(self, *arguments: Any, **keywords: Any) -> keras.callbacks.History:
        """Trains as `fit` does, with the same arguments."""
        return await asyncio.to_thread(self.fit, *arguments, **keywords)

    async def evaluate_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluates as `evaluate` does."""
        return await asyncio.to_thread(self.evaluate, *arguments, **keywords)

    async def predict_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Predicts as `predict` does."""
        return await asyncio.to_thread(self.predict, *arguments, **keywords)

    async def train_on_batch_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Trains on a batch as `train_on_batch` does."""
        return await asyncio.to_thread(self.train_on_batch, *arguments, **keywords)

    async def test_on_batch_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluates a batch as `test_on_batch` does."""
        return await asyncio.to_thread(self.test_on_batch, *arguments, **keywords)

    async def predict_on_batch_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Predicts for a batch as `predict_on_batch` does."""
        return await asyncio.to_thread(self.predict_on_batch, *arguments, **keywords)
