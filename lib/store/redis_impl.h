/*
 * Shared by the files of the Redis backends only.
 *
 *   redis_addr.c     addresses, users, passwords
 *   redis.c          sessions, kinds of requests
 *   redis_get.c      items that come, several asked for ahead
 *   redis_conn.c     connections, and one command with its reply
 *   redis_cluster.c  which node has a key
 *
 * A session has a connection to each node that it has needed.  Values are whole frames (item.h) under "ds:" and the
 * key's 32 hex digits.
 */
#ifndef DS_STORE_REDIS_IMPL_H
#define DS_STORE_REDIS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/addr.h"
#include "store/resp.h"
#include "store/store_impl.h"

enum {
	REDIS_SEEDS = 16, REDIS_NODES = 1024, REDIS_SLOTS = 16384,
	REDIS_NAME = 3 + STORE_KEY_HEX,  /* "ds:" and the key, with its NUL */
	REDIS_REDIRECTS = 8,             /* of one command */
};

struct redis {
	struct store base;
	bool cluster;
	int64_t db;
	char *user, *password;   /* user NULL: the default one */
	struct addr seeds[REDIS_SEEDS];
	size_t nseeds;
	pthread_mutex_t lock;    /* of those known */
	struct addr *known;      /* nodes of the last map that a session read: the seeds may be gone */
	size_t nknown, known_cap;
	_Atomic uint64_t has, has_found, hits, misses, hit_bytes, puts, put_bytes, already, refused, corrupt, expired;
};

struct redis_node {
	struct addr addr;
	int fd;                  /* -1: not connected */
	struct resp r;
	bool used;               /* it has answered on this connection, which may have gone since */
	uint64_t owed;           /* replies to come that were not read yet */
	int64_t again_ns, pause_ns; /* not tried before; 0: it was there when last tried */
	struct ds_err why;
};

struct redis_session {
	struct store_session base;
	struct redis *s;
	struct redis_node **nodes; /* of a cluster: those known, the seeds first */
	size_t n, cap;
	uint16_t *slots;         /* [REDIS_SLOTS] of a cluster: numbers of nodes, UINT16_MAX: not known */
	bool stale;              /* the map is to be read again, */
	int64_t map_again_ns;    /* not before that */
	struct ds_err map_why;   /* it could not be read; code 0: it could */
	struct frame_writer *w;
	struct frame_parser *parser;
	struct meta_builder *meta;
	uint8_t *front;          /* [front_cap] of an item that comes */
	size_t front_cap;
};

void redis_name(const struct store_key *key, char name[REDIS_NAME]);

/* ---- addresses ---- */

/* "USER@" before the first of them: *rest is moved behind it. */
int redis_take_user(struct redis *s, const char **rest, struct ds_err *err);
int redis_parse_one(struct redis *s, const char *rest, struct ds_err *err);
int redis_parse_many(struct redis *s, const char *rest, struct ds_err *err);
int redis_read_password(struct redis *s, const char *path, struct ds_err *err); /* the file's first line */

/* ---- connections ---- */

int redis_node_add(struct redis_session *ss, const struct addr *a, size_t *i, struct ds_err *err);
/* Connected; its waits end at the session's deadline. */
int redis_ready(struct redis_session *ss, struct redis_node *node, struct ds_err *err);
void redis_drop(struct redis_node *node);
/* Drops connections on which replies are on their way. */
void redis_abandon(struct redis_session *ss);
/* Reads and forgets the replies that are on their way, or drops the connection where that takes long. */
void redis_settle(struct redis_session *ss);
/* The time that a wait may take from now on. */
int64_t redis_deadline(const struct redis_session *ss);
void redis_add_command(struct redis_node *node, size_t n, const char *const *args); /* of text */
/* What an error reply means.  DS_NO: the key is there, and is no string. */
int redis_refused(const struct redis_node *node, const char *text, struct ds_err *err);
/* One command (iov [n]) about a key and its reply's head, redirected where that is asked for and tried again once
 * where an old connection has gone.  *node: who answered. */
int redis_call(struct redis_session *ss, const struct store_key *key, const struct iovec *iov, size_t n,
	struct redis_node **node, struct resp_reply *reply, struct ds_err *err);
/* The same of a command of text. */
int redis_ask(struct redis_session *ss, const struct store_key *key, size_t n, const char *const *args,
	struct redis_node **node, struct resp_reply *reply, struct ds_err *err);

/* ---- clusters ---- */

unsigned redis_slot(const char *name, size_t n);
/* The node that has this key as far as is known; without a cluster, the node. */
int redis_node_of(struct redis_session *ss, const struct store_key *key, struct redis_node **node, struct ds_err *err);
/* A reply MOVED or ASK: who is to be asked.  False: it is another error. */
bool redis_redirect(struct redis_session *ss, const struct redis_node *from, const char *text,
	struct redis_node **to, bool *asking);

/* ---- items ---- */

int redis_get(struct store_session *base, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err);

#endif
