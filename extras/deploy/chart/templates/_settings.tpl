{{/* The settings of the job: what the values say, and over it the value `settings`. ${NAME} comes from the driver's environment. */}}
{{- define "sluice.settings" -}}
{{- $settings := include "sluice.settingsOfValues" . | fromYaml -}}
{{- mergeOverwrite $settings (deepCopy .Values.settings) | toYaml }}
{{- end }}

{{/* The settings of the console: it reads topics and tables with the login of an auditor, and has no Spark. */}}
{{- define "sluice.consoleSettings" -}}
{{- pick (include "sluice.settings" . | fromYaml) "kafka" "topics" "delta" "s3" | toYaml }}
{{- end }}

{{- define "sluice.settingsOfValues" -}}
{{- $kafka := .Values.kafka -}}
{{- $executors := .Values.job.executors -}}
{{- $location := include "sluice.location" . -}}
kafka:
  bootstrap.servers: {{ required "kafka.bootstrapServers is empty; expected such as kafka.kafka.svc:9093" $kafka.bootstrapServers }}
  security.protocol: {{ $kafka.securityProtocol }}
  {{- if hasPrefix "SASL" $kafka.securityProtocol }}
  sasl.mechanism: {{ $kafka.saslMechanism }}
  sasl.jaas.config: >-
    org.apache.kafka.common.security.{{ ternary "plain.Plain" "scram.Scram" (eq $kafka.saslMechanism "PLAIN") }}LoginModule required
    username="${KAFKA_USERNAME}" password="${KAFKA_PASSWORD}";
  {{- end }}
  {{- if hasSuffix "SSL" $kafka.securityProtocol }}
  ssl.truststore.type: PEM
  ssl.truststore.location: /etc/sluice/kafka/ca.pem
  {{- if $kafka.clientCertificate }}
  ssl.keystore.type: PEM
  ssl.keystore.location: /etc/sluice/kafka/client.pem
  {{- end }}
  {{- end }}
topics:
  partitions: 12
  replication_factor: 3
# Checkpoints are URIs, so that a standby may wait for them.
enforce:
  checkpoint: {{ $location }}/checkpoints/enforce
  {{- if $executors.instances }}
  shuffle_partitions: {{ mul $executors.instances $executors.cores }}
  {{- end }}
audit:
  checkpoint: {{ $location }}/checkpoints/audit
delta:
  quotas: {{ trimPrefix "file://" $location }}/delta/quotas
  decisions: {{ $location }}/delta/decisions
  quota_metrics: {{ $location }}/delta/quota_metrics
  dead_letters: {{ $location }}/delta/dead_letters
  unreadable: {{ $location }}/delta/unreadable
  overrides: {{ trimPrefix "file://" $location }}/delta/overrides
{{- if .Values.storage.s3.secret }}
s3:
  credentials_file: /etc/sluice/s3/credentials
{{- end }}
health:
  address: 0.0.0.0  # a probe comes from the node; the network policy admits Prometheus and nobody else
  port: 9464
spark:
  spark.driver.memory: 2g
  {{- if not $executors.instances }}
  spark.master: local[*]
  {{- else }}
  spark.master: k8s://https://kubernetes.default.svc:443
  spark.kubernetes.namespace: {{ .Release.Namespace }}
  spark.kubernetes.container.image: {{ include "sluice.image" . }}
  spark.kubernetes.container.image.pullPolicy: {{ .Values.image.pullPolicy }}
  spark.kubernetes.executor.podTemplateFile: /etc/sluice/settings/executor.yaml
  spark.kubernetes.authenticate.executor.serviceAccountName: {{ .Release.Name }}-executor
  spark.kubernetes.driver.pod.name: ${POD_NAME}  # the executors' owner: they go with the driver's pod
  spark.driver.host: ${POD_IP}
  # fixed ports, for the network policy
  spark.driver.port: '7078'
  spark.driver.blockManager.port: '7079'
  spark.blockManager.port: '7079'
  # a secret that Spark makes for each run of the driver and hands to its executors
  spark.authenticate: 'true'
  spark.network.crypto.enabled: 'true'
  spark.executor.instances: {{ $executors.instances | quote }}
  spark.executor.cores: {{ $executors.cores | quote }}
  spark.executor.memory: {{ $executors.memory }}
  spark.executor.memoryOverhead: {{ $executors.memoryOverhead }}
  spark.dynamicAllocation.enabled: 'false'
  # Spark ends the driver after this many lost executors, counted since its start unless an interval is given
  spark.executor.maxNumFailures: '20'
  spark.executor.failuresValidityInterval: 1h
  {{- end }}
{{- end }}
