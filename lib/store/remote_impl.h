/*
 * Shared by the files of the client of ds-kvstore only.
 *
 *   remote.c       kinds of requests
 *   remote_get.c   items that come, as bytes or as ranges of files
 *   remote_put.c   items that go, as bytes or through memory that the store shares
 *   remote_wire.c  the connection: made again after an error at the next call, every wait with an end
 */
#ifndef DS_STORE_REMOTE_IMPL_H
#define DS_STORE_REMOTE_IMPL_H

#include <pthread.h>

#include "frame/messages_store.h"
#include "net/addr.h"
#include "store/store_impl.h"

struct remote {
	struct store base;
	struct addr addr;
	bool fds;              /* descriptors can be passed, and are wanted */
	pthread_mutex_t lock;  /* of what follows: a peer that is not there is not tried by everybody all the time */
	int64_t again_ns, pause_ns;
	bool met;              /* it was there once */
	struct ds_err why;
};

struct remote_session {
	struct store_session base;
	struct remote *r;
	int fd;                   /* -1: not connected */
	struct frame_reader *in;
	struct frame_writer *out; /* makes frames, has no descriptor */
	struct frame_parser *parser;
	struct meta_builder *meta;
	uint64_t seq, sent;       /* frames and bytes to the peer */
	uint64_t stream;          /* number of the request */
	bool greeted;             /* its hello was read */
	bool no_fds;              /* a descriptor did not arrive: this process may have too many */
	uint8_t *shared;          /* [shared_bytes] memory from which the peer takes payloads, NULL: none */
	size_t shared_bytes;
	int shared_fd;
	bool told, refused;       /* the peer has it; it does not want it */
	int files[STORE_MESSAGE_SEGMENTS]; /* -1: none */
	uint8_t *front, *coded, *plain;    /* of an item; what is not read to its place at once */
	size_t front_cap, coded_cap, plain_cap;
};

/* There is a connection: it is made where there is none.  What was said to a former one is forgotten. */
int wire_ready(struct remote_session *ss, struct ds_err *err);
/* A request whose meta is ss->meta; a connection is made where there is none.  After an error of the connection it is
 * closed. */
int wire_ask(struct remote_session *ss, const struct iovec *iov, int n, bool hash, struct ds_err *err);
/* The same without a payload on the connection that there is, which another would not do for. */
int wire_on(struct remote_session *ss, struct ds_err *err);
/* The same with a descriptor beside it. */
int wire_pass(struct remote_session *ss, int fd, struct ds_err *err);
/* The next event of its answer, FRAME_HEAD or FRAME_BODY of a store frame.  An ERROR frame is the error that it tells
 * of, after which the connection is as before. */
int wire_next(struct remote_session *ss, enum frame_event *ev, struct frame **f, struct ds_err *err);
/* The peer said what it should not: closes. */
int wire_nonsense(struct remote_session *ss, struct ds_err *err);
void wire_close(struct remote_session *ss);
void wire_end(struct remote_session *ss); /* says that it ends, and closes */
bool wire_late(const struct remote_session *ss); /* the deadline is over */
int wire_too_late(struct remote_session *ss, struct ds_err *err);

/* The answer, one ok frame; what a points to lives until the next call. */
int remote_answer(struct remote_session *ss, enum store_op op, size_t n, bool each, struct store_answer *a,
	struct ds_err *err);
int remote_put(struct store_session *base, const struct store_put *p, enum store_put_result *how, struct ds_err *err);
void remote_shared_free(struct remote_session *ss);
int remote_get(struct store_session *base, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err);
void remote_files_close(struct remote_session *ss);
void remote_doubt(struct store_session *base, const struct store_key *key);

#endif
