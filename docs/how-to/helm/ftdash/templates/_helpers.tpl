{{- define "ftdash.labels" -}}
app.kubernetes.io/name: ftdash
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ftdash.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "ftdash.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ftdash.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What every container of ours has: image, environment and volumes; the worker has those of Spark. */}}
{{- define "ftdash.startsExecutors" -}}
{{- if and .root.Values.spark.enabled (eq .component "worker") }}true{{ end }}
{{- end }}

{{- define "ftdash.container" -}}
image: {{ .root.Values.image | quote }}
imagePullPolicy: {{ .root.Values.imagePullPolicy }}
securityContext:
  {{- include "ftdash.containerSecurity" . | nindent 2 }}
env:
  - {name: FTDASH_DATABASE_URL, value: {{ .root.Values.databaseUrl | quote }}}
  - {name: FTDASH_DATABASE_PASSWORD_FILE, value: /run/secrets/ftdash/database-password}
  - {name: FTDASH_REDIS_URL, value: {{ .root.Values.redisUrl | quote }}}
  - {name: FTDASH_REDIS_PASSWORD_FILE, value: /run/secrets/ftdash/redis-password}
  - {name: FTDASH_SECRET_KEY_FILE, value: /run/secrets/ftdash/secret-key}
  - {name: FTDASH_ALLOWED_HOSTS, value: {{ .root.Values.domain | quote }}}
  - {name: FTDASH_BASE_URL, value: {{ printf "https://%s" .root.Values.domain | quote }}}
  - {name: FTDASH_TRUSTED_ORIGINS, value: {{ printf "https://%s" .root.Values.domain | quote }}}
  # The probes ask from within the pod.
  - {name: FTDASH_TRUSTED_PROXIES, value: {{ printf "127.0.0.1,%s" .root.Values.trustedProxies | quote }}}
  - {name: FTDASH_TLS, value: "1"}
  - {name: FTDASH_LOG_JSON, value: "1"}
  {{- range $name, $value := .root.Values.variables }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- if include "ftdash.startsExecutors" . }}
  - {name: SPARK_CONF_DIR, value: /etc/ftdash/spark}
  {{- end }}
volumeMounts:
  - {name: home, mountPath: /var/lib/ftdash}
  - {name: tmp, mountPath: /tmp}
  - {name: secrets, mountPath: /run/secrets/ftdash, readOnly: true}
  {{- if include "ftdash.startsExecutors" . }}
  - {name: spark, mountPath: /etc/ftdash/spark, readOnly: true}
  {{- end }}
{{- end }}

{{- define "ftdash.volumes" -}}
- name: home
  persistentVolumeClaim: {claimName: {{ .Release.Name }}-home}
- name: secrets
  secret:
    secretName: {{ .Values.existingSecret }}
    defaultMode: 0440
    items:
      - {key: database-password, path: database-password}
      - {key: redis-password, path: redis-password}
      - {key: secret-key, path: secret-key}
{{- end }}
