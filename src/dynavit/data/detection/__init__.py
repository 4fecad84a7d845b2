"""Images with boxes and masks: COCO files, Penn-Fudan, folders of one's own, and made-up shapes."""
