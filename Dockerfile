# One image for every process of Rienda, nats-server included (compose.yaml).
FROM python:3.11-slim
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1
WORKDIR /app
RUN pip install --quiet --no-cache-dir uv==0.13.9
COPY requirements.lock pyproject.toml README.md ./
RUN uv pip install --quiet --system --requirement requirements.lock
COPY contracts contracts
COPY shared shared
COPY services services
RUN uv pip install --quiet --system --no-deps --editable . \
    && mkdir -p /data /rienda/secrets /rienda/admin /rienda/postgres /rienda/nats /rienda/prepare \
        /rienda/bootstrap /rienda/ledger /rienda/ledger-migrate /rienda/gateway \
        /rienda/gateway-migrate \
    && chown -R 10001:10001 /data /rienda
# A new volume takes its owner from the folder that it is mounted over.
USER 10001:10001
