{{/* The template of the executors' pods; Spark adds image, arguments, variables, resources and a volume for its own files. */}}
{{- define "sluice.executorPod" -}}
{{- $component := dict "root" . "component" "executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "sluice.labels" $component | nindent 4 }}
spec:
  {{- with .Values.podSpec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  terminationGracePeriodSeconds: 30
  securityContext:
    {{- include "sluice.podSecurity" . | nindent 4 }}
  affinity:
    {{- include "sluice.affinity" $component | nindent 4 }}
  containers:
    - name: spark-kubernetes-executor
      securityContext:
        {{- include "sluice.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "sluice.mounts" $component | nindent 8 }}
  volumes:
    {{- include "sluice.volumes" $component | nindent 4 }}
{{- end }}

{{/* The template of a driver's pod. An operator names its container, and gives it image, arguments and resources. */}}
{{- define "sluice.driverPod" -}}
{{- $of := dict "root" . "component" "driver" "secret" .Values.kafka.secret -}}
{{- $deployment := eq .Values.job.form "deployment" -}}
metadata:
  labels:
    {{- include "sluice.labels" $of | nindent 4 }}
  annotations:
    {{- if $deployment }}
    checksum/settings: {{ include "sluice.settings" . | sha256sum }}  # a change of them replaces the pods
    {{- end }}
    {{- if not .Values.monitoring.podMonitor }}
    prometheus.io/scrape: 'true'
    prometheus.io/port: '9464'
    prometheus.io/path: /metrics
    {{- end }}
spec:
  {{- with .Values.podSpec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  serviceAccountName: {{ .Release.Name }}-driver
  terminationGracePeriodSeconds: 180
  securityContext:
    {{- include "sluice.podSecurity" . | nindent 4 }}
  affinity:
    {{- include "sluice.affinity" $of | nindent 4 }}
  containers:
    - name: {{ $deployment | ternary "driver" "spark-kubernetes-driver" }}
      {{- if $deployment }}
      image: {{ include "sluice.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: {{ include "sluice.run" . }}
      resources:
        {{- toYaml .Values.job.resources | nindent 8 }}
      {{- end }}
      env:
        {{- include "sluice.variables" . | nindent 8 }}
      ports:
        - {name: health, containerPort: 9464}
      # /healthz answers before the driver waits for anything. Ready is who decides or stands by: nobody sends
      # requests to a driver, and a standby counts for rollouts and the disruption budget.
      startupProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 2
        failureThreshold: 60
      readinessProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 10
        timeoutSeconds: 5
      livenessProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      securityContext:
        {{- include "sluice.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "sluice.mounts" $of | nindent 8 }}
  volumes:
    {{- include "sluice.volumes" $of | nindent 4 }}
{{- end }}
