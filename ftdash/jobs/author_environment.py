"""The environment of a process that runs an author's code: allowed variables, and no others.

A variable that is not listed here stays in the control plane, unless the administrator names it in
FTDASH_PIPELINE_VARIABLES. A secret of the control plane is never passed on. This is also imported
before Django is loaded: nothing that needs models may be imported here.
"""

import os
from fnmatch import fnmatchcase

from django.conf import settings

ALLOWED = (
    # The account, its language and its places.
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ"),
    *("TMPDIR", "XDG_*", "LD_LIBRARY_PATH"),
    *("PYTHON*", "VIRTUAL_ENV"),
    # Spark, its Java, and the clusters that it starts slots on.
    *("JAVA_HOME", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "SPARK_*", "PYSPARK_*"),
    *("HADOOP_*", "YARN_*", "KRB5CCNAME", "KRB5_CONFIG", "KUBERNETES_*", "KUBECONFIG"),
    # Certificates and proxies.
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    # The object store: its library reads every variable that begins so.
    "AWS_*",
    # What the engine reads.
    *("FTDASH_PIPELINES", "FTDASH_STORAGE_ROOTS", "FTDASH_TASKMANAGER_HOST"),
    *("FTDASH_TLS_CERTIFICATE_FILE", "FTDASH_TLS_KEY_FILE", "FTDASH_TLS_CA_FILE"),
    # What the pipeline `page_views` reads and writes.
    *("FTDASH_VIEWS_REDIS_URL", "FTDASH_VIEWS_DATABASE_URL"),
    *("FTDASH_VIEWS_KAFKA", "FTDASH_VIEWS_KAFKA_SECURITY"),
    # A mark by which the guardian of a demonstration finds the processes that it ends
    # (`ftdash.embedded.supervisor`). It opens nothing.
    "FTDASH_EMBEDDED_MARK",
)
"""Names of variables; a `*` at the end stands for any further characters."""


def environment_of_authors() -> dict[str, str]:
    """Returns the part of this process's environment that authors' code may have."""
    passed = (*ALLOWED, *settings.PIPELINE_VARIABLES)
    return {
        name: value
        for name, value in os.environ.items()
        if name not in settings.NEVER_PASSED and any(fnmatchcase(name, each) for each in passed)
    }
