/* Shared by the files of the Redis front only. */
#ifndef DS_STORE_RESP_IMPL_H
#define DS_STORE_RESP_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include <xxhash.h>

#include "store/pool.h"
#include "store/resp.h"
#include "store/resp_front.h"

/* ---- values in memory (resp_cache.c) ---- */

struct resp_cached {
	struct resp_cached *next, *newer, *older;
	uint64_t segment, offset;       /* of the item, as struct store_ref has it */
	unsigned refs;
	uint64_t size, expires_ns;
	uint8_t head[FRAME_HEAD_BYTES]; /* as the file has it */
	struct store_buffer b;
	size_t name_n;
	uint8_t name[];
};
struct resp_cache;
struct resp_cache *resp_cache_new(struct store_pool *pool, uint64_t limit); /* NULL: none */
void resp_cache_free(struct resp_cache *k);
/* Has it until resp_cache_done. */
struct resp_cached *resp_cache_get(struct resp_cache *k, uint64_t segment, uint64_t offset);
void resp_cache_done(struct resp_cache *k, struct resp_cached *e);
/* A value that was read from there, in a buffer of so many bytes, is worth keeping: it was asked for lately. */
bool resp_cache_wants(struct resp_cache *k, uint64_t segment, uint64_t offset, size_t cap);
/* It is the cache's from here on, with its buffer. */
void resp_cache_put(struct resp_cache *k, struct resp_cached *e);

/* ---- connections (resp_front.c, resp_args.c, resp_work.c) ---- */

struct resp_front {
	struct store *store;
	struct resp_options o;
	struct store_pool *pool, own; /* own: where none is shared */
	struct resp_cache *cache;     /* NULL: none */
	struct resp_workers *workers; /* NULL: each connection is served by the thread that brought it */
	int64_t began_ns;
	_Atomic uint64_t connections, clients, commands, errors, collisions;
	_Atomic bool draining;
};

enum { RESP_SMALL = 16 << 10 }; /* values up to this are read into the arguments' memory */

struct resp_text { const uint8_t *p; size_t n; };

/* RESP_AGAIN: more has come while a worker serves it. */
enum resp_state { RESP_IDLE, RESP_SERVED, RESP_AGAIN };

struct resp_conn {
	struct resp r;
	struct resp_front *front;
	struct store_session *ss;
	struct meta_builder *meta;
	struct frame_parser *parser; /* of a store of files */
	const char *peer;
	uint64_t id;
	char name[65];             /* as CLIENT SETNAME said */
	int proto;                 /* 2 or 3 */
	bool quit;
	bool within;               /* a command was not done to its end */
	/* the present command */
	const struct resp_command *command;
	size_t argc, args;         /* with its name; read so far */
	struct resp_arg { size_t at, n; bool value; } *argv;
	size_t argv_cap;
	struct buf text;           /* arguments but large values */
	bool in_line;              /* all of them are in text */
	const char *refused;       /* why nothing is done, though the rest is read */
	struct store_buffer value;
	uint8_t small[RESP_SMALL]; /* for a value out of the store */
	/* with workers */
	bool by_workers;
	_Atomic int state;
	_Atomic bool ending;       /* the client sends no more than what is here */
	bool over;                 /* rc, err say how */
	int rc;
	struct ds_err err;
	pthread_cond_t told;
	struct resp_conn *next;    /* not in use */
};

/* Does the commands that are here.  *more: others may come. */
int resp_serve_some(struct resp_conn *c, bool *more, struct ds_err *err);
/* Reads one command and has it done; an error ends the connection. */
int resp_command(struct resp_conn *c, struct ds_err *err);

int resp_workers_open(struct resp_front *f, struct ds_err *err);
void resp_workers_close(struct resp_front *f);
/* Has the connection served to its end. */
int resp_by_workers(struct resp_conn *c, struct ds_err *err);
/* A connection whose turn is over, though more has come, is to have another. */
void resp_worker_again(struct resp_conn *c);
struct resp_conn *resp_conn_take(struct resp_front *f, struct ds_err *err);
void resp_conn_give(struct resp_conn *c);

struct resp_command {
	const char *name;
	size_t min, max;           /* arguments with the name; max 0: any number */
	size_t value;              /* which one may be large, 0: none */
	bool stream;               /* reads its arguments itself */
	int keys[3];               /* first, last, step, as COMMAND says it */
	int (*run)(struct resp_conn *c, struct ds_err *err); /* an error ends the connection */
};
extern const struct resp_command resp_commands[]; /* ended by name NULL */
extern const size_t resp_command_count;

struct resp_text resp_arg(const struct resp_conn *c, size_t i);
/* Argument i is this word; case does not matter. */
bool resp_is(const struct resp_conn *c, size_t i, const char *word);
/* Reads the next argument of a streaming command as the one numbered c->args. */
int resp_next(struct resp_conn *c, bool value, struct ds_err *err);
void resp_forget(struct resp_conn *c); /* the arguments that were read, for a streaming command */
/* The thread that serves this has to wait for something else than the client, or is done with that. */
void resp_stall(const struct resp_conn *c, bool begin);
/* Of one long command part i is next: now and then others have their turn. */
void resp_turn(const struct resp_conn *c, size_t i);
/* Memory for a value; waits a while where others have it all.  False: none. */
bool resp_take(struct resp_conn *c, size_t n, struct store_buffer *b);
/* The peer has time for n bytes from now on. */
void resp_allow(struct resp_conn *c, uint64_t n);

void resp_ok(struct resp_conn *c);
void resp_nil(struct resp_conn *c);
void resp_map(struct resp_conn *c, size_t pairs); /* the head of a map: in RESP2 an array */
/* An error reply; fmt begins with its code ("ERR ..."). */
void resp_error(struct resp_conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- commands ---- */

int resp_do_get(struct resp_conn *c, struct ds_err *err);
int resp_do_mget(struct resp_conn *c, struct ds_err *err);
int resp_do_set(struct resp_conn *c, struct ds_err *err);
int resp_do_setex(struct resp_conn *c, struct ds_err *err);
int resp_do_psetex(struct resp_conn *c, struct ds_err *err);
int resp_do_setnx(struct resp_conn *c, struct ds_err *err);
int resp_do_mset(struct resp_conn *c, struct ds_err *err);
int resp_do_exists(struct resp_conn *c, struct ds_err *err);
int resp_do_strlen(struct resp_conn *c, struct ds_err *err);
int resp_do_type(struct resp_conn *c, struct ds_err *err);
int resp_do_ttl(struct resp_conn *c, struct ds_err *err);
int resp_do_pttl(struct resp_conn *c, struct ds_err *err);
int resp_do_del(struct resp_conn *c, struct ds_err *err);

/* What a name has in the store (resp_value.c). */
struct resp_seek {
	bool found, read, busy;  /* busy: no memory for it now */
	bool other;              /* what has the key has another name */
	uint64_t size, expires_ns;
	const uint8_t *data;     /* [size], if read */
	struct store_buffer b;
	struct resp_conn *c;
	struct resp_text name;
	bool payload;
};
struct store_key resp_key(struct resp_text name);
/* payload: it is read too; give s->b back to the pool.  An error of the store. */
int resp_seek(struct resp_conn *c, struct resp_text name, bool payload, struct resp_seek *s, struct ds_err *err);
/* Argument i as a name; false: it is too long, which was replied. */
bool resp_name(struct resp_conn *c, size_t i, struct resp_text *name);
void resp_store_error(struct resp_conn *c, const struct ds_err *err);
int resp_send_bytes(struct resp_conn *c, const uint8_t *p, size_t n, struct ds_err *err);
/* GET of a store of files (resp_fetch.c).  False: it has to be got as of any other. */
bool resp_fetch(struct resp_conn *c, struct resp_text name, int *rc, struct ds_err *err);
void resp_session_deadline(struct resp_conn *c);

#endif
