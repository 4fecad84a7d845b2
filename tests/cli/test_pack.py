"""`dynavit pack`, and a training on what it wrote."""

from data.image_files import write_folder


def test_a_training_on_packed_images_sees_the_same_samples(run, tmp_path):
    folder = write_folder(tmp_path / "photos", {"train": {"cat": 4, "dog": 4}, "val": {"cat": 2, "dog": 2}})
    (folder / "val/cat/0.png").write_bytes(b"no image")
    code, out, err = run("pack", folder, tmp_path / "packed", "--size", "16", "--shard-images", "3")
    assert code == 0, err
    assert out == f"11 images of 2 classes in 5 tar files, 1 left out because they cannot be read: {tmp_path / 'packed'}\n"
    assert "val/cat/0.png" in err and "dynavit train --data-dir" in err
    small = "--model vit_micro --epochs 1 --batch-size 4 --quiet --augment.recipe none --loading.workers 0"
    options = [*small.split(), "--loading.image_size", "8", "--model_options.depth", "1", "--model_options.norm_blocks", "1"]
    code, out, err = run("train", "--data-dir", tmp_path / "packed", "--out", tmp_path / "run", *options)
    assert code == 0, err
    code, out, err = run("eval", tmp_path / "run", "--split", "val", "--quiet")
    assert code == 0, err
    assert "cat" in out and "dog" in out


def test_wrong_use_is_one_line(run, tmp_path):
    code, _, err = run("pack", tmp_path / "absent", tmp_path / "packed")
    assert code == 2 and "absent" in err and not (tmp_path / "packed").exists()
    code, _, err = run("pack", tmp_path, tmp_path / "packed", "--quality", "99")
    assert code == 2 and "at most 95" in err
