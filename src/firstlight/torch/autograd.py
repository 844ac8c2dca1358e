"""The interface to autograd: values computed with their gradient, and second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd.function import FunctionCtx

#: The value and its gradient.
Compute = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
#: Hessian times vectors: (tensors, vectors) → the products, concatenated in one tensor.
Product = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], torch.Tensor]


class Number(torch.autograd.Function):
    """`compute(tensors)` returns the value and its gradient; with rows of tensors, rows of both."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, compute: Compute, product: Product | None, *tensors: torch.Tensor
    ) -> torch.Tensor:
        value: torch.Tensor
        value, gradient = compute(tensors)
        ctx.product = product
        ctx.save_for_backward(gradient, *tensors)
        return value

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            gradient = Gradient.apply(ctx.product, gradient, *tensors)
        factor = outer[0].unsqueeze(-1) if outer[0].ndim else outer[0]
        return (None, None, *_parts(factor * gradient, tensors))


class Gradient(torch.autograd.Function):
    """The gradient as a function of the tensors."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, product: Product | None, gradient: torch.Tensor, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.product = product
        ctx.save_for_backward(*tensors)
        return gradient.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.product is None:
            raise NotImplementedError(
                "the batch forms and nll_loss have no second derivatives. Use the profiled "
                "losses, one histogram at a time."
            )
        tensors = ctx.saved_tensors
        found = ctx.product(tensors, _parts(outer[0], tensors))
        return (None, None, *_parts(found, tensors))


def _parts(joined: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Splits one tensor into the shapes and dtypes of others."""
    rows = joined.ndim - 1
    parts = joined.split([tensor.shape[rows:].numel() for tensor in tensors], dim=-1)
    return [p.reshape(t.shape).to(t.dtype) for p, t in zip(parts, tensors, strict=True)]


def number(
    compute: Compute,
    product: Product | None,
    tensors: Sequence[torch.Tensor],
) -> torch.Tensor:
    """The value, with derivatives with respect to all tensors."""
    value: torch.Tensor = Number.apply(compute, product, *tensors)
    return value
