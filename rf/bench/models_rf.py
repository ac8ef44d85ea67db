"""Models of the benchmark that rf has nowhere else, written as a user of rf would."""

from __future__ import annotations

import rf
from rf import Dim, Tensor

__all__ = ["BasicBlock", "FeedForwardBlock", "LstmCellLoop", "LstmLanguageModel", "ResNet18"]


class FeedForwardBlock(rf.Module):
    """x + dropout(linear(gelu(linear(norm(x))))): {..., model} -> {..., model}."""

    def __init__(self, model_dim: Dim, ff_dim: Dim, *, dropout: float) -> None:
        """
        :param model_dim: of input and output.
        :param ff_dim: between the linear maps.
        :param dropout: probability, in training.
        """
        super().__init__()
        self.norm = rf.LayerNorm(model_dim)
        self.linear_in = rf.Linear(model_dim, ff_dim)
        self.linear_out = rf.Linear(ff_dim, model_dim)
        self.dropout = dropout

    def __call__(self, x: Tensor) -> Tensor:
        """
        :param x: {..., model}.
        """
        y = self.linear_out(rf.gelu(self.linear_in(self.norm(x))))
        return rf.dropout(y, self.dropout) + x


class LstmLanguageModel(rf.Module):
    """Labels so far -> scores of the next label: {..., spatial} -> {..., spatial, vocab}."""

    def __init__(self, vocab_dim: Dim, embed_dim: Dim, hidden_dims: list[Dim], *, dropout: float) -> None:
        """
        :param vocab_dim: labels.
        :param embed_dim: of the embedding.
        :param hidden_dims: of each layer.
        :param dropout: probability, in training, before, between and after the layers.
        """
        super().__init__()
        self.embedding = rf.Embedding(vocab_dim, embed_dim)
        self.layers = rf.ModuleList(rf.LSTM(i, o) for i, o in zip([embed_dim, *hidden_dims], hidden_dims))
        self.logits = rf.Linear(hidden_dims[-1], vocab_dim)
        self.dropout = dropout

    def __call__(self, labels: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param labels: {..., spatial}, sparse dim `vocab_dim`.
        :param spatial_dim: time.
        """
        batch_dims = labels.remaining_dims(spatial_dim)
        x = rf.dropout(self.embedding(labels), self.dropout)
        for layer in self.layers:
            state = layer.default_initial_state(batch_dims=batch_dims)
            x, _ = layer(x, state=state, spatial_dim=spatial_dim)
            x = rf.dropout(x, self.dropout)
        return self.logits(x)


class LstmCellLoop(rf.Module):
    """An LSTM layer, frame by frame: {..., spatial, in} -> {spatial, ..., hidden}."""

    def __init__(self, in_dim: Dim, hidden_dim: Dim) -> None:
        """
        :param in_dim: of the input.
        :param hidden_dim: of the result.
        """
        super().__init__()
        self.cell = rf.LSTM(in_dim, hidden_dim)

    def __call__(self, x: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param x: {..., spatial, in}.
        :param spatial_dim: time, static.
        """
        state = self.cell.default_initial_state(batch_dims=x.remaining_dims([spatial_dim, self.cell.in_dim]))
        out = []
        for frame in rf.unstack(x, axis=spatial_dim):
            h, state = self.cell(frame, state=state, spatial_dim=rf.single_step_dim)
            out.append(h)
        return rf.stack(out, out_dim=spatial_dim)[0]


class ResNet18(rf.Module):
    """{..., channels, height, width} -> {..., classes}, for small images: the first convolution is 3x3, without
    pooling.

    Source: He et al. 2015, arXiv:1512.03385; the first convolution is that of its section 4.2, for CIFAR.
    """

    def __init__(self, in_dim: Dim, class_dim: Dim, *, width: int) -> None:
        """
        :param in_dim: channels of the images.
        :param class_dim: of the result.
        :param width: channels of the first stage; each of the other three has twice as many as the one before.
        """
        super().__init__()
        dim = Dim(width, name="channels0")
        self.conv = rf.Conv2d(in_dim, dim, 3, padding="same", with_bias=False)
        self.norm = rf.BatchNorm(dim, eps=1e-5)
        self.blocks: rf.ModuleList[BasicBlock] = rf.ModuleList()
        for stage in range(4):
            out_dim = dim if stage == 0 else Dim(width << stage, name=f"channels{stage}")
            for stride in (1 if stage == 0 else 2, 1):
                self.blocks.append(BasicBlock(dim, out_dim, stride=stride))
                dim = out_dim
        self.linear = rf.Linear(dim, class_dim)

    def __call__(self, images: Tensor, *, spatial_dims: list[Dim]) -> Tensor:
        """
        :param images: {..., channels, height, width}.
        :param spatial_dims: [height, width].
        """
        x, dims = self.conv(images, in_spatial_dims=spatial_dims)
        x = rf.relu(self.norm(x))
        for block in self.blocks:
            x, dims = block(x, spatial_dims=dims)
        return self.linear(rf.reduce_mean(x, axis=dims))


class BasicBlock(rf.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))), where x is convolved and normalized too when its shape changes."""

    def __init__(self, in_dim: Dim, out_dim: Dim, *, stride: int) -> None:
        """
        :param in_dim: channels.
        :param out_dim: channels of the result.
        :param stride: of the first convolution.
        """
        super().__init__()
        self.conv1 = rf.Conv2d(in_dim, out_dim, 3, padding="same", strides=stride, with_bias=False)
        self.norm1 = rf.BatchNorm(out_dim, eps=1e-5)
        self.conv2 = rf.Conv2d(out_dim, out_dim, 3, padding="same", with_bias=False)
        self.norm2 = rf.BatchNorm(out_dim, eps=1e-5)
        self.shortcut_conv = self.shortcut_norm = None
        if stride != 1 or in_dim != out_dim:
            self.shortcut_conv = rf.Conv2d(in_dim, out_dim, 1, padding="same", strides=stride, with_bias=False)
            self.shortcut_norm = rf.BatchNorm(out_dim, eps=1e-5)

    def __call__(self, x: Tensor, *, spatial_dims: list[Dim]) -> tuple[Tensor, list[Dim]]:
        """
        :param x: {..., in, *spatial}.
        :param spatial_dims: [height, width].
        :returns: (result, its spatial dims).
        """
        y, dims = self.conv1(x, in_spatial_dims=spatial_dims)
        y, dims = self.conv2(rf.relu(self.norm1(y)), in_spatial_dims=dims)
        y = self.norm2(y)
        if self.shortcut_conv is not None and self.shortcut_norm is not None:
            x, _ = self.shortcut_conv(x, in_spatial_dims=spatial_dims)
            x = self.shortcut_norm(x)
        return rf.relu(y + x), dims
