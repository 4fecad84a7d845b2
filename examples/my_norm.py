"""A norm of your own: `dynavit compare --plugin examples/my_norm.py --norms ln,dtn,mine --seeds 0,1,2`."""

import torch

import dynavit


@dynavit.register_norm("mine")
class Mine(dynavit.Norm):
    """Each channel learns how much of the token's mean it gives up: share 1 is LayerNorm, share 0 is RMSNorm."""

    mixes_tokens = uses_heads = False  # facts; without them a careful guess is made
    starts_as, mixing_parameters = "ln", ("share",)  # so that a trained LayerNorm can be replaced without a jump

    def __init__(self, dim, **shared):
        super().__init__(dim, **shared)
        self.share = torch.nn.Parameter(torch.empty(dim, device=shared.get("device"), dtype=shared.get("dtype")))
        self.reset_parameters()

    def reset_parameters(self):
        super().reset_parameters()
        self.start_at(0.5)

    def start_at(self, share):
        torch.nn.init.constant_(self.share, share)

    def normalise(self, x, grid, mask):  # (b, t, c); the affine map, masks and precision are taken care of
        x = x - self.share * x.mean(-1, keepdim=True)
        return torch.nn.functional.rms_norm(x, (self.dim,), eps=self.eps)
