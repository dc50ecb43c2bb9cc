{{/* Labels of a component, and what selects it: (dict "root" $ "component" NAME); without one those of the release. */}}
{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The root of checkpoints and tables. */}}
{{- define "sluice.location" -}}
{{ .Values.storage.s3.uri | default "file:///var/lib/sluice" | trimSuffix "/" }}
{{- end }}

{{/* Not empty if pods have the volume; beside an object store only a claim that is named, for files of `sluice state`. */}}
{{- define "sluice.volume" -}}
{{- if or (not .Values.storage.s3.uri) .Values.storage.volume.existingClaim }}true{{ end }}
{{- end }}

{{- define "sluice.claim" -}}
{{ .Values.storage.volume.existingClaim | default (printf "%s-storage" .Release.Name) }}
{{- end }}

{{/* The user of the image. */}}
{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Not empty if all pods have one volume that one node alone may mount. */}}
{{- define "sluice.oneNode" -}}
{{- $volume := .Values.storage.volume -}}
{{- if and (not .Values.storage.s3.uri) (not $volume.existingClaim) (eq $volume.accessMode "ReadWriteOnce") }}true{{ end }}
{{- end }}

{{/* Pods of one component rather on different nodes; where they share a volume of one node, all rather on one. */}}
{{- define "sluice.affinity" -}}
{{- if and (include "sluice.oneNode" .root) (ne .component "proxy") }}
podAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "sluice.labels" (dict "root" .root) | nindent 12 }}
{{- else }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "sluice.labels" . | nindent 12 }}
{{- end }}
{{- end }}

{{/* Variables with the login of a Secret: (dict "root" $ "secret" NAME). */}}
{{- define "sluice.login" -}}
{{- if hasPrefix "SASL" .root.Values.kafka.securityProtocol }}
- name: KAFKA_USERNAME
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: username}}
- name: KAFKA_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: password}}
{{- end }}
{{- end }}

{{/* Where a container has what `sluice.volumes` mounts; an executor has no settings and no login. */}}
{{- define "sluice.mounts" -}}
{{- $values := .root.Values -}}
- {name: tmp, mountPath: /tmp}
{{- if and (include "sluice.volume" .root) (ne .component "proxy") }}
- {name: storage, mountPath: /var/lib/sluice{{ if eq .component "console" }}, readOnly: true{{ end }}}
{{- end }}
{{- if and $values.storage.s3.secret (ne .component "proxy") }}
- {name: s3, mountPath: /etc/sluice/s3, readOnly: true}
{{- end }}
{{- if .secret }}
- {name: settings, mountPath: /etc/sluice/settings, readOnly: true}
{{- if hasSuffix "SSL" $values.kafka.securityProtocol }}
- {name: kafka, mountPath: /etc/sluice/kafka, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{/* Volumes of a pod: (dict "root" $ "component" NAME "secret" NAME-OF-THE-LOGIN). */}}
{{- define "sluice.volumes" -}}
{{- $values := .root.Values -}}
- name: tmp
  emptyDir: {}
{{- if and (include "sluice.volume" .root) (ne .component "proxy") }}
- name: storage
  persistentVolumeClaim:
    claimName: {{ include "sluice.claim" .root }}
    {{- if eq .component "console" }}
    readOnly: true
    {{- end }}
{{- end }}
{{- if and $values.storage.s3.secret (ne .component "proxy") }}
- name: s3
  secret:
    secretName: {{ $values.storage.s3.secret }}
    items:
      - {key: credentials, path: credentials}
{{- end }}
{{- if .secret }}
- name: settings
  configMap:
    name: {{ .root.Release.Name }}-settings
{{- if hasSuffix "SSL" $values.kafka.securityProtocol }}
- name: kafka
  secret:
    secretName: {{ .secret }}
    items:
      - {key: ca.pem, path: ca.pem}
      {{- if $values.kafka.clientCertificate }}
      - {key: client.pem, path: client.pem}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Variables of a container that has the settings of the job. */}}
{{- define "sluice.variables" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{ include "sluice.login" (dict "root" . "secret" .Values.kafka.secret) | trim }}
{{- end }}

{{/* The arguments of a driver. */}}
{{- define "sluice.run" -}}
[run, --config=/etc/sluice/settings/settings.yaml, --standby]
{{- end }}
