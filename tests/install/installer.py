"""install.sh as a user would call it, with kubectl and helm in front that write down every argument."""

import copy
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SECONDS = 300
NAMESPACES = ("kubeflow", "train-func", "train-func-hub")
CHARTS = ("openebs", "jupyterhub")  # which the testbed cannot reach; tests/install/charts.py has those it is given
IN_FRONT = """#!/usr/bin/env bash
printf '%s\\n' "{name} $*" >>"{folder}/arguments"
exec "{real}" "$@"
"""


class Installer:
    """On the cluster of a kubeconfig; ``said`` is everything that it has printed so far."""

    def __init__(
        self,
        kubeconfig: Path,
        bundle: Path,
        folder: Path,
        image: str,
        engine_image: str,
        *,
        script: Path = ROOT / "install.sh",
        without: tuple[str, ...] = CHARTS,
    ) -> None:
        self._folder = folder
        self._bundle = bundle
        self._script = script
        self._without = without
        self._context = yaml.safe_load(kubeconfig.read_text())["current-context"]
        self.said = ""
        self.in_place = False
        """Whether its last installation ended well and none has uninstalled it since."""
        for name in ("kubectl", "helm"):
            if real := shutil.which(name):
                (folder / name).write_text(IN_FRONT.format(name=name, real=real, folder=folder))
                (folder / name).chmod(0o755)
        self._environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "KUBECONFIG": str(kubeconfig),
            "TRAIN_FUNC_IMAGE": image,
            "S3_IMAGE": engine_image,
        }

    @property
    def arguments(self) -> str:
        """Every command line of kubectl and helm."""
        return (self._folder / "arguments").read_text()

    @property
    def files(self) -> str:
        """All that its runs have written on this machine, and that those left which were killed."""
        found = [path for path in self._folder.rglob("*") if path.is_file() and self._bundle not in path.parents]
        return "\n".join(path.read_text(errors="replace") for path in found)

    def with_what_is_remembered(self) -> "Installer":
        """The same without --skip."""
        found = copy.copy(self)
        found._without = ()
        return found

    def __call__(
        self, command: str, *options: str, agreed: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """As it ended, well or not; ``agreed``: the name of the context is given to every prompt for it."""
        done = subprocess.run(
            self._command(command, *options),
            env=self._environment | environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            input=f"{self._context}\n" if agreed else "",
        )
        self.said += done.stdout + done.stderr
        if command in ("install", "uninstall") and "--dry-run" not in options:
            self.in_place = command == "install" and done.returncode == 0
        return done

    def must(self, command: str, *options: str) -> str:
        """What it says when it ends well."""
        done = self(command, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def killed_at(self, words: str, *options: str) -> None:
        """An installation that is killed, with all its processes, as soon as it says this in a line of its own."""
        self.in_place = False
        process = subprocess.Popen(
            self._command("install", *options),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        assert any(re.fullmatch(words, line.strip()) for line in process.stderr)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        process.stderr.close()

    def _command(self, command: str, *options: str) -> list[str]:
        always = ["--profile", "testbed", "--bundle", str(self._bundle), "--yes"]
        if command not in ("uninstall", "status", "credentials") and "--only" not in options:
            always += ["--skip", ",".join(self._without)] if self._without else []
        return [str(self._script), command, *always, *options]
