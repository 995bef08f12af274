"""The components: each a function of ``functions`` in the image of this package, for this pipeline or another one.

The image is TRAIN_FUNC_IMAGE, as it is when a component is first used; a task takes another one by
``set_container_image``.
"""

import os

from kfp import dsl

from train_func.pipeline import functions

UNNAMED = "registry/train-func:1"  # where no image is named: for pipelines that run on this machine
IMAGE = os.environ.get("TRAIN_FUNC_IMAGE") or UNNAMED

# Nothing is installed when a step starts: the image has this package and kfp, of the versions that were tried together.
_made = {
    function.__name__: dsl.component(function, base_image=IMAGE, install_kfp_package=False)
    for function in (functions.prepare, functions.train, functions.evaluate, functions.promote)
}
prepare = _made["prepare"]
train = _made["train"]
evaluate = _made["evaluate"]
promote = _made["promote"]
