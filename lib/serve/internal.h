/*
 * Shared by the files of lib/serve only.
 *
 *   stage.c    options, the run from start to end, what callbacks call
 *   loop.c     poll(2) and who is served when
 *   source.c   reading a source's frames, the life of a source
 *   accept.c   connections that come in
 *   tell.c     errors that many requests share
 *   peer.c     the downstream connection (-c) and which source a stream belongs to
 *   output.c   stdout, files that are renamed when complete, sinks in general
 *   signals.c  signals, readiness
 */
#ifndef DS_SERVE_INTERNAL_H
#define DS_SERVE_INTERNAL_H

#include "frame/messages.h"
#include "base/log.h"
#include "base/outfile.h"
#include "net/addr.h"
#include "serve/stage.h"

enum {
	QUEUE_LIMIT = 8 << 20,       /* bytes that may wait for a reader before its source is held back */
	QUEUE_DROP = 64 << 20,       /* replies pile up to this for one client of many: it is dropped */
	MAX_SOURCES = 1024,
	FRAMES_A_TURN = 64,          /* of one source before others and the program's work have theirs */
	BYTES_A_TURN = 8 << 20,
};
#define LINGER_NS ((int64_t)2000000000)       /* for a peer to read what we said last */
#define TWICE_NS ((int64_t)50000000)          /* timeout(1) signals its child twice in a row: that is one signal */
#define ACCEPT_PAUSE_NS ((int64_t)200000000)  /* after accept failed for want of descriptors */
#define HELLO_NS ((int64_t)10000000000)       /* for our input's hello, before we say ours downstream without it */
#define ALIVE_NS ((int64_t)3000000000)        /* well below any --peer-timeout in use */
#define CONNECT_NS ((int64_t)15000000000)     /* services start in any order */

/* Where frames or text go. */
struct sink {
	int fd;
	char name[300];
	struct frame_writer *w;
	bool hello_sent, ended, dead;
	uint64_t progress;      /* bytes moved when its queue was last seen to move, and when that was */
	int64_t progress_ns;
};

enum source_state {
	SRC_OPEN,     /* being read, answered */
	SRC_CLOSING,  /* last words wait in its queue */
	SRC_LINGER,   /* all is said; until the peer closes, what it sends is thrown away */
	SRC_DEAD,     /* to be freed */
};

struct source {
	struct stage *st;
	struct source *next;
	enum source_state state;
	char name[300];
	int fd;
	bool socket;            /* ours to close, answered on the same descriptor */
	bool hello_seen, input_done, input_bad, paused, drop, gone, readable;
	bool watched;           /* its descriptor was polled for input in this round */
	bool ends;              /* a file or a pipe: after END its end is waited for */
	bool tail;              /* END was read from a file or pipe: nothing but its end may follow */
	struct frame_reader *r; /* NULL: raw */
	struct sink own, *answer;
	struct hello hello;
	size_t holds, routes;
	int64_t progress_ns, close_by;
	int64_t unread_ns;      /* since when it is left unread, or its peer was told that we live */
	uint64_t progress_bytes;
};

struct route {
	uint64_t stream;        /* 0: free */
	struct source *src;     /* NULL: its source has gone; what comes is dropped */
	bool sent;              /* the downstream peer knows the stream */
	unsigned asked;         /* requests of that id which the program was given and has not refused */
	char id[REQUEST_ID_MAX + 1]; /* the request's name, "" where it was not read */
};

/* What is about to be said on stderr, and of how many requests; n 0: nothing. */
struct told { struct ds_err why; size_t n; int64_t due; };

struct stage {
	const struct stage_config *cfg;
	const struct stage_ops *ops;
	bool service;           /* many connections until a signal; else one stream */
	bool connect, draining, busy, stop, finished;
	bool working;           /* some connection waits for an answer */
	bool drain_news;        /* draining began in this round: what came before that is not read yet */
	bool cut;               /* draining took too long: last words are on their way, until drain_by */
	int rc;                 /* of the run: the first error's */
	struct ds_err err;      /* its text, "" if nothing is to be printed */
	struct told told;
	int64_t began, now, drain_by, accept_after;
	struct source *sources;
	size_t source_count;
	uint64_t accepted;
	struct addr listen_addr, connect_addr;
	int listen_fd;
	struct sink out;        /* stdout or a file; w is NULL in a service that answers on its connections */
	struct outfile file;    /* what out writes to */
	bool out_watch;         /* a pipe or socket: poll tells when its reader has gone */
	struct {
		struct sink sink;
		struct frame_reader *r;
		struct hello hello;
		bool hello_seen, ended, lost;
		struct ds_err why;      /* it was lost */
		int64_t progress_ns;
		uint64_t progress_bytes;
	} down;
	struct route *routes;
	size_t route_count, route_cap;
	struct meta_builder *meta;
};

/* stage.c */
void stage_fail(struct stage *st, const struct ds_err *why);   /* notes the first error; the run goes on */
void stage_abort(struct stage *st, const struct ds_err *why);  /* notes it and ends the run */
void stage_drain(struct stage *st, int64_t since_ns);
void send_error(struct stage *st, struct sink *to, uint64_t stream, const char *id, bool retryable,
	const struct ds_err *why);

/* tell.c */
/* On stderr, soon: with the number of requests, where more come with the same words. */
void tell(struct stage *st, const struct ds_err *why, size_t requests);
void tell_flush(struct stage *st);
int64_t tell_due(const struct stage *st); /* -1: nothing is to be said */

/* loop.c */
int stage_loop(struct stage *st, struct ds_err *err);

/* source.c */
struct source *source_new(struct stage *st, int fd, bool socket, const char *name, struct ds_err *err);
void source_free(struct source *src);
void source_read(struct source *src);
bool source_due(struct source *src);                     /* a connection that owes us bytes */
bool source_wants(const struct source *src);                   /* to be read now */
bool source_unread(const struct source *src);                  /* its peer waits for us: we read nothing from it */
void source_reassure(struct source *src);                      /* tells such a peer now and then that we live */
void source_cut(struct source *src, const struct ds_err *why); /* its requests end with this error */
void source_fail(struct source *src, const struct ds_err *why); /* a bad stream, or a peer that has gone */
void source_turn(struct source *src);                          /* whatever is due: finish, flush, linger, drop */
bool source_idle(const struct source *src);                    /* nothing of it is running or half read */
bool source_awaits(const struct source *src);                  /* an answer */
void source_lost(struct source *src);                          /* gone without a word */
void source_end(struct source *src, bool complete);            /* gone() once; routes are cancelled */

/* accept.c */
void accept_some(struct stage *st);

/* peer.c */
int peer_open(struct stage *st, struct ds_err *err);
void peer_close(struct stage *st);
void peer_read(struct stage *st);
void peer_turn(struct stage *st);
void peer_lost(struct stage *st, const struct ds_err *why);
bool peer_elsewhere(const struct stage *st);
void peer_hello(struct stage *st, const struct hello *input);
struct route *route_find(struct stage *st, uint64_t stream);
struct route *route_add(struct stage *st, uint64_t stream, struct source *src);
void route_sent(struct route *r);
void route_drop(struct stage *st, struct route *r);
void routes_orphan(struct source *src);

/* output.c */
int sink_open(struct sink *s, int fd, const char *name, struct ds_err *err);
void sink_close(struct sink *s);
bool sink_full(const struct sink *s);
bool sink_queued(const struct sink *s);
bool sink_stalled(struct stage *st, struct sink *s, uint64_t heard); /* nothing was taken, or heard, for too long */
int output_open(struct stage *st, struct ds_err *err);
int output_commit(struct stage *st, struct ds_err *err);       /* everything is written: flush errors, rename */
void output_discard(struct stage *st);
void output_release(struct stage *st); /* stdout is complete: its reader may go on while we wait for our input's end */
void sink_hello(struct sink *s, struct stage *st, const struct hello *h);
void output_hello(struct stage *st);                           /* once, with what is known */
void sink_note(struct stage *st, struct sink *s, const struct ds_err *why); /* writing failed */
void sink_end(struct stage *st, struct sink *s);

/* signals.c */
enum { SIGNAL_AGAIN = 100 };           /* a second one that is to end us */
/* A process that has not come to signals_done drain_ns and a bit after the first signal ends with one line on stderr
 * and DS_TEMP; likewise soon after a second signal. */
int signals_service(int64_t drain_ns, struct ds_err *err);
void signals_done(void);
int signals_fd(void);
int signals_next(void);                /* a signal's number, 0: none */
int64_t signals_since(void);           /* when the first one that is to end us came */
void signals_last(int64_t ns);         /* instead of the time to drain: so long from now */
void notify_ready(int64_t ready_fd);
void notify_stopping(void);

#endif
