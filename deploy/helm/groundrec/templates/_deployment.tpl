{{/* One track (stable or canary) as a Deployment: replicas share nothing but Redis, so they need no identity.
     Arguments: root, track, replicas (nil while an autoscaler decides), settings, checkpoint, image. */}}
{{- define "groundrec.deployment" -}}
{{- include "groundrec.validateCheckpoint" .checkpoint }}
{{- $values := .root.Values }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "groundrec.fullname" .root }}{{ if ne .track "stable" }}-{{ .track }}{{ end }}
  labels:
    {{- include "groundrec.labels" .root | nindent 4 }}
    app.kubernetes.io/component: service
    groundrec/track: {{ .track }}
spec:
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  minReadySeconds: {{ $values.rollout.minReadySeconds }}
  progressDeadlineSeconds: {{ $values.rollout.progressDeadlineSeconds }}
  revisionHistoryLimit: 5
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: {{ $values.rollout.maxSurge }}
      maxUnavailable: {{ $values.rollout.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "groundrec.selectorLabels" .root | nindent 6 }}
      app.kubernetes.io/component: service
      groundrec/track: {{ .track }}
  template:
    metadata:
      labels:
        {{- include "groundrec.labels" .root | nindent 8 }}
        app.kubernetes.io/component: service
        groundrec/track: {{ .track }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "groundrec.podSpec" . | nindent 6 }}
{{- end }}

{{- define "groundrec.podSpec" -}}
{{- $values := .root.Values -}}
serviceAccountName: {{ include "groundrec.serviceAccountName" .root }}
automountServiceAccountToken: false
# A Service called groundrec would put GROUNDREC_PORT=tcp://... into the environment, which is one of our settings.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "groundrec.gracePeriod" . }}
securityContext:
  {{- include "groundrec.podSecurityContext" 10001 | nindent 2 }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if and $values.gpu.enabled $values.gpu.runtimeClassName }}
runtimeClassName: {{ $values.gpu.runtimeClassName }}
{{- end }}
{{- if ne .checkpoint.source "pvc" }}
initContainers:
  {{- include "groundrec.fetchCheckpoint" . | nindent 2 }}
{{- end }}
containers:
  - name: service
    image: {{ include "groundrec.image" (dict "root" .root "overrides" .image) }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    securityContext:
      {{- include "groundrec.securityContext" . | nindent 6 }}
    env:
      {{- include "groundrec.environment" . | nindent 6 }}
    ports:
      - name: http
        containerPort: 8000
    {{- range $name, $path := dict "startup" "/health/live" "liveness" "/health/live" "readiness" "/health/ready" }}
    {{ $name }}Probe:
      httpGet:
        path: {{ $path }}
        port: http
      {{- toYaml (index $values.probes $name) | nindent 6 }}
    {{- end }}
    lifecycle:
      preStop:
        exec:
          command: [sleep, {{ $values.shutdown.preStopSeconds | toString | quote }}]
    resources:
      {{- include "groundrec.resources" (dict "resources" $values.resources "gpu" $values.gpu "settings" .settings) | nindent 6 }}
    volumeMounts:
      - name: checkpoint
        mountPath: /data/checkpoint
        readOnly: true
        {{- if and (eq .checkpoint.source "pvc") .checkpoint.pvc.subPath }}
        subPath: {{ .checkpoint.pvc.subPath | quote }}
        {{- end }}
      - name: tmp
        mountPath: /tmp
      - name: shm
        mountPath: /dev/shm
      {{- if $values.auth.enabled }}
      - name: keys
        mountPath: /etc/groundrec/keys
        readOnly: true
      {{- end }}
volumes:
  - name: checkpoint
    {{- if eq .checkpoint.source "pvc" }}
    persistentVolumeClaim:
      claimName: {{ .checkpoint.pvc.claimName }}
      readOnly: true
    {{- else }}
    emptyDir:
      sizeLimit: {{ (index .checkpoint .checkpoint.source).sizeLimit }}
    {{- end }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ $values.scratch.tmp }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ $values.scratch.shm }}
  {{- if $values.auth.enabled }}
  - name: keys
    secret:
      secretName: {{ $values.auth.existingSecret.name }}
      defaultMode: 0440
  {{- end }}
{{- include "groundrec.placement" . }}
{{- end }}

{{- define "groundrec.environment" -}}
- name: GROUNDREC_CHECKPOINT
  value: /data/checkpoint
- name: GROUNDREC_HOST
  value: 0.0.0.0
- name: GROUNDREC_PORT
  value: "8000"
- name: GROUNDREC_AUTH
  value: {{ ternary "on" "off" .root.Values.auth.enabled | quote }}
{{- if .root.Values.auth.enabled }}
- name: GROUNDREC_API_KEYS_FILE
  value: /etc/groundrec/keys/{{ .root.Values.auth.existingSecret.key }}
{{- end }}
{{- $redis := .root.Values.redis }}
{{- if $redis.bundled.enabled }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $redis.bundled.existingSecret.name }}
      key: {{ $redis.bundled.existingSecret.key }}
- name: GROUNDREC_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "groundrec.redisName" .root }}:6379/0
{{- else }}
- name: GROUNDREC_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ $redis.existingSecret.name }}
      key: {{ $redis.existingSecret.key }}
{{- end }}
{{- include "groundrec.tracesEnvironment" . }}
{{- range $name, $value := .settings }}
- name: GROUNDREC_{{ upper $name }}
  value: {{ include "groundrec.settingValue" $value | quote }}
{{- end }}
{{- end }}

{{/* OpenTelemetry's own variables, as its operator would set them; the service reads them as its settings. */}}
{{- define "groundrec.tracesEnvironment" }}
{{- $traces := .root.Values.traces }}
{{- if $traces.enabled }}
- name: GROUNDREC_TRACES
  value: "true"
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ $traces.endpoint | quote }}
{{- with $traces.existingSecret.name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $traces.existingSecret.key }}
{{- end }}
- name: OTEL_TRACES_SAMPLER
  value: {{ $traces.sampler }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $traces.samplerArg | quote }}
- name: OTEL_SERVICE_NAME
  value: {{ include "groundrec.fullname" .root }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name={{ .root.Release.Namespace }},k8s.pod.name=$(POD_NAME),groundrec.track={{ .track }}
{{- end }}
{{- end }}

{{- define "groundrec.fetchCheckpoint" -}}
- name: checkpoint
  {{- if eq .checkpoint.source "objectStore" }}
  image: {{ .checkpoint.objectStore.image }}
  args: [copy, --transfers=8, --config=/tmp/rclone.conf, {{ .checkpoint.objectStore.url | quote }}, /data/checkpoint]
  {{- with .checkpoint.objectStore.existingSecret }}
  envFrom:
    - secretRef:
        name: {{ . }}
  {{- end }}
  {{- else }}
  image: {{ .checkpoint.image.reference }}
  command: [cp, -R, {{ printf "%s/." .checkpoint.image.path | quote }}, /data/checkpoint/]
  {{- end }}
  securityContext:
    {{- include "groundrec.securityContext" . | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 128Mi}
    limits: {memory: 1Gi}
  volumeMounts:
    - name: checkpoint
      mountPath: /data/checkpoint
    - name: tmp
      mountPath: /tmp
{{- end }}

{{- define "groundrec.resources" -}}
{{- $resources := deepCopy .resources }}
{{- if .gpu.enabled }}
{{- $_ := set $resources "limits" (merge (dict .gpu.resourceName (.settings.tensor_parallel | default 1 | toString)) ($resources.limits | default dict)) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "groundrec.placement" }}
{{- $values := .root.Values }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range $key, $policy := dict "kubernetes.io/hostname" $values.topologySpread.hostname "topology.kubernetes.io/zone" $values.topologySpread.zone }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $policy }}
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "groundrec.selectorLabels" $.root | nindent 8 }}
        app.kubernetes.io/component: service
        groundrec/track: {{ $.track }}
  {{- end }}
{{- end }}
{{- end }}
