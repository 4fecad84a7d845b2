"""DTN on several processes with DistributedDataParallel: `torchrun --nproc_per_node 2 examples/ddp.py`.

DTN needs nothing special there. Norms with statistics over the batch do: they add up over processes by themselves, and take
them over once per step by `commit_statistics()`.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dynavit
from dynavit.data.open import open_data


def main(epochs=2, norm="dtn"):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)  # the same weights everywhere
    model = dynavit.create_model("vit_micro", norm=norm, num_classes=10, img_size=8, in_chans=1).to(device)
    parallel = DistributedDataParallel(model)
    optimiser = torch.optim.AdamW(dynavit.parameter_groups(model, weight_decay=0.05, lr=3e-3), lr=3e-3)
    split = open_data("digits").splits["train"]
    samples = TensorDataset(split.images.float() / 255 - 0.3, split.labels)
    sampler = DistributedSampler(samples)  # each process sees its share
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(samples, batch_size=32, sampler=sampler):
            loss = F.cross_entropy(parallel(images.to(device)), labels.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            for module in model.modules():
                if hasattr(module, "commit_statistics"):
                    module.commit_statistics()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    largest, smallest = weights.clone(), weights.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, loss {loss.item():.3f}, weights differ by {(largest - smallest).max():.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
