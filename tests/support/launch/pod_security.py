"""The level `restricted` of the Pod Security Standards, as https://kubernetes.io/docs/concepts/security has it.

Of its controls, those about fields that a job is rendered with; the others forbid what no job has.
"""

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def problems_of_pod(pod):
    """Yields the name of each control that a pod's spec does not satisfy."""
    shared, own = pod.get("securityContext", {}), [each.get("securityContext", {}) for each in pod["containers"]]
    if any(context.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True for context in own):
        yield "running as non-root"
    if any(context.get("runAsUser") == 0 for context in (shared, *own)):
        yield "running as non-root user"
    profiles = [context.get("seccompProfile", shared.get("seccompProfile", {})) for context in own]
    if any(profile.get("type") not in ("RuntimeDefault", "Localhost") for profile in profiles):
        yield "seccomp"
    if any(not (set(volume) - {"name"}) <= VOLUMES for volume in pod.get("volumes", ())):
        yield "volume types"
    for context in own:
        if context.get("allowPrivilegeEscalation") is not False:
            yield "privilege escalation"
        capabilities = context.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()) or capabilities.get("add"):
            yield "capabilities"
