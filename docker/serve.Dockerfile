# A parameter server, `thinwire serve`, on top of the image of the command.
#
#   docker build -f docker/Dockerfile -t thinwire .
#   docker build -f docker/serve.Dockerfile -t thinwire-serve docker
#   docker run -p 7070:7070 -v thinwire-run:/run/thinwire -v "$PWD/keys:/keys:ro" thinwire-serve \
#       --tls-cert /keys/server.pem --tls-key /keys/server.key --token-file /keys/token --task gpt --workers 4
#
# The run is kept in the volume /run/thinwire: a container that is started again goes on with it. An address that other machines
# reach needs TLS, and a token or certificates of the workers; `thinwire serve` refuses to start without them.

FROM thinwire
USER root
RUN mkdir -p /run/thinwire && chown thinwire /run/thinwire
USER thinwire
VOLUME /run/thinwire
EXPOSE 7070
# SIGTERM lets the round end and writes a snapshot.
STOPSIGNAL SIGTERM
ENTRYPOINT ["thinwire", "serve", "--listen", "0.0.0.0:7070", "--out", "/run/thinwire/run"]
CMD []
