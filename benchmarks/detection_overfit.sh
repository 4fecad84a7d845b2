#!/bin/sh
# E10 of plan.md, "by heart": eight made-up pictures, without mirroring, then AP on the same eight.
# sh benchmarks/detection_overfit.sh OUT [MODEL ...]
set -e
out=$1
shift
for norm in ln dtn; do
    for model in ${*:-retinanet maskrcnn}; do
        case $model in retinanet) epochs=300 ;; maskrcnn) epochs=200 ;; esac  # 2 steps each
        test -e "$out/$model-$norm/eval/train.json" && continue
        python -m dynavit train --config ${model}_shapes --norm $norm --epochs $epochs --batch_size 4 --lr 5e-4 --engine.eval_every $epochs \
            --engine.threads 1 --augment.flip false --loading.options.train 8 --loading.options.val 0 --loading.options.test 1 \
            --loading.options.smallest 32 --out "$out/$model-$norm" --resume
        python -m dynavit eval "$out/$model-$norm" --split train
    done
done
