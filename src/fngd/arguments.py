"""What `FNGD` and `NaturalGradient` are called with, made to fit together: a policy, and settings that go with it."""

from __future__ import annotations

from dataclasses import replace

from fngd.policies import FromHead, Policy, Shared
from fngd.settings import Settings


def chosen_policy(policy: Policy | None, derive_steps: int | None) -> Policy:
    """The policy that one of two arguments names.

    Args:
        policy: The policy itself.
        derive_steps: Steps to derive before sharing: the paper's policy.

    Returns:
        The policy.

    Raises:
        ValueError: If neither is given, or both, or it is no policy.
    """
    if policy is None and derive_steps is None:
        raise ValueError(
            "derive_steps is missing: the number of steps that derive coefficients before they are shared. Pass "
            "derive_steps=len(loader) for one epoch, as in the paper, or a policy such as fngd.Fresh()"
        )
    if policy is None:
        assert derive_steps is not None
        return Shared(derive_steps)
    if derive_steps is not None:
        raise ValueError(f"derive_steps={derive_steps!r} and policy={policy!r} exclude each other: pass one of them")
    if not isinstance(policy, Policy):
        raise ValueError(f"policy={policy!r} must be a policy object such as fngd.Shared(100) or fngd.Fresh()")
    return policy


def settings_for(policy: Policy, given: Settings) -> Settings:
    """The settings as the policy takes them: `FromHead` brings its own damping and scales c to mean one.

    Args:
        policy: The policy.
        given: The settings as given.

    Returns:
        The settings.

    Raises:
        ValueError: If something is given that the policy would not heed.
    """
    if not isinstance(policy, FromHead):
        return given
    usual = replace(given, alpha=Settings.alpha, damping=None, scale_by_damping=False)
    wanted = replace(usual, alpha=policy.alpha)
    if given not in (usual, wanted):
        raise ValueError(
            f"alpha={given.alpha!r}, damping={given.damping!r}, scale_by_damping={given.scale_by_damping!r} do not go "
            f"with policy={policy!r}, which scales its coefficients to mean one and damps by its own alpha: leave them "
            "out and pass fngd.FromHead(alpha)"
        )
    return wanted
