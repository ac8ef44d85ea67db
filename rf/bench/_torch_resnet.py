"""ResNet-18 for small images as torch code: He et al. 2015, arXiv:1512.03385."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ResNet18", "from_rf"]

_RENAMED = {"filter": "weight", "gamma": "weight", "beta": "bias", "running_variance": "running_var"}


def from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.bench.models_rf.ResNet18` under the names here.

    The modules are named alike. Filters are in the same layout; the `weight` of the linear map is {in, out} in rf.
    """
    out = {}
    for name, value in weights.items():
        module, _, parameter = name.rpartition(".")
        out[f"{module}.{_RENAMED.get(parameter, parameter)}"] = value.t() if parameter == "weight" else value
    return out


class ResNet18(nn.Module):
    """(batch, 3, height, width) -> (batch, classes). As for CIFAR: the first convolution is 3x3, without pooling."""

    def __init__(self, *, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, channels = [], width
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(BasicBlock(channels, width << stage, stride))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(images)), inplace=True)
        return self.linear(self.blocks(x).mean(dim=(2, 3)))

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, mean over the batch."""
        return F.cross_entropy(self(images), targets)


class BasicBlock(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))), where x is convolved and normalized too when its shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut_conv = self.shortcut_norm = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut_conv = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.shortcut_norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        if self.shortcut_conv is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut_conv(x))
        return F.relu(x + y, inplace=True)
