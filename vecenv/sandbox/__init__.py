"""Programs that may be hostile, run by the thousand: jobs in, results out.

Import names from here. The page is README.md of this folder.
"""

from vecenv.sandbox.job import Job, Limits, Result, Status
from vecenv.sandbox.languages import LANGUAGES, Language
from vecenv.sandbox.remote import E2B, Remote, SandboxFusion
from vecenv.sandbox.sandbox import Sandbox

__all__ = ["E2B", "LANGUAGES", "Job", "Language", "Limits", "Remote", "Result", "Sandbox", "SandboxFusion", "Status"]
