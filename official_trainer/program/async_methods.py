"""A Program's calls in an event loop: each `…_async` method runs the method of its name in a thread.

Owns: these methods. Does not own: that calls of one program wait for each other, or what a cancelled one does
(`compiled_model.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from official_trainer.lazy import keras


class AsyncMethods:
    """Calls that several programs may make in one event loop.

    Calls of one program wait for each other. If the task that awaits a `fit_async` is cancelled, training ends after
    the current window, a run directory has the checkpoint of that step, and only then the task continues; other calls
    do not end early. The event loop handles signals; `asyncio.run` cancels at the first Ctrl-C.
    """

    _compiled: Any
    fit: Callable[..., Any]
    evaluate: Callable[..., Any]
    predict: Callable[..., Any]
    train_on_batch: Callable[..., Any]
    test_on_batch: Callable[..., Any]
    predict_on_batch: Callable[..., Any]

    async def fit_async(self, *arguments: Any, **keywords: Any) -> keras.callbacks.History:
        """Trains as `fit` does, with the same arguments."""
        return await self._in_thread(self.fit, *arguments, **keywords)

    async def evaluate_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluates as `evaluate` does."""
        return await self._in_thread(self.evaluate, *arguments, **keywords)

    async def predict_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Predicts as `predict` does."""
        return await self._in_thread(self.predict, *arguments, **keywords)

    async def train_on_batch_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Trains on a batch as `train_on_batch` does."""
        return await self._in_thread(self.train_on_batch, *arguments, **keywords)

    async def test_on_batch_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluates a batch as `test_on_batch` does."""
        return await self._in_thread(self.test_on_batch, *arguments, **keywords)

    async def predict_on_batch_async(self, *arguments: Any, **keywords: Any) -> Any:
        """Predicts for a batch as `predict_on_batch` does."""
        return await self._in_thread(self.predict_on_batch, *arguments, **keywords)

    async def _in_thread(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return await self._compiled.calls.run_in_thread(functools.partial(method, *arguments, **keywords))
