"""The level `restricted` of the Pod Security Standards, as https://kubernetes.io/docs/concepts/security has it.

It includes the level `baseline`. What is about Windows alone is left out.
"""

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
CONFINED = {"RuntimeDefault", "Localhost"}
HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe")


def problems_of_pod(pod):
    """Yields the name of each control that a pod's spec does not satisfy."""
    containers = [*pod["containers"], *pod.get("initContainers", ()), *pod.get("ephemeralContainers", ())]
    own = [each.get("securityContext", {}) for each in containers]
    yield from _problems_for_all(pod.get("securityContext", {}), own)
    if any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    if any(port.get("hostPort") for each in containers for port in each.get("ports", ())):
        yield "host ports"
    if any(handler.get(kind, {}).get("host") for handler in _handlers(containers) for kind in ("httpGet", "tcpSocket")):
        yield "host probes and hooks"
    if any(not (set(volume) - {"name"}) <= VOLUMES for volume in pod.get("volumes", ())):
        yield "volume types"
    for context in own:
        if context.get("privileged"):
            yield "privileged containers"
        if context.get("procMount", "Default") != "Default":
            yield "/proc mount type"
        if context.get("allowPrivilegeEscalation") is not False:
            yield "privilege escalation"
        capabilities = context.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()) or not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
            yield "capabilities"


def _problems_for_all(shared, own):
    """Yields controls of fields that a pod sets for all of its containers, and each container over that."""
    if any(context.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True for context in own):
        yield "running as non-root"
    if any(context.get("runAsUser") == 0 for context in (shared, *own)):
        yield "running as non-root user"
    profiles = [context.get("seccompProfile", shared.get("seccompProfile", {})) for context in own]
    if any(profile.get("type") not in CONFINED for profile in (shared.get("seccompProfile", profiles[0]), *profiles)):
        yield "seccomp"
    if any(
        context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in CONFINED for context in (shared, *own)
    ):
        yield "AppArmor"
    options = [context.get("seLinuxOptions", {}) for context in (shared, *own)]
    if any(each.get("type") not in SELINUX or each.get("user") or each.get("role") for each in options):
        yield "SELinux"
    if any(each["name"] not in SYSCTLS for each in shared.get("sysctls", ())):
        yield "sysctls"


def _handlers(containers):
    for each in containers:
        yield from (each.get(name, {}) for name in HANDLERS)
        yield from each.get("lifecycle", {}).values()
