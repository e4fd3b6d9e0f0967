/*
 * What all programs that frames pass through share: where frames come from and go to, the loop that moves them,
 * readiness, drain.
 *
 *   filter   reads stdin or --input, writes stdout or --output
 *   -c ADDR  what would go to the output goes to ADDR instead; what comes back from there goes to the output (or to
 * the client that the stream id belongs to).  A stream is open from its request (or the first frame sent for it)
 * until DONE, ERROR or PREFILLED comes back -l ADDR  a service: each connection is a source, answered on the same
 * connection; with -o FILE it takes one stream and ends
 *
 * One thread: the loop polls the descriptors, hands complete frames to the program's callbacks, and calls `step` when
 * the program said that there is work.  Back-pressure: a source is not read while its output queue is over its limit
 * or while the program holds it back.
 */
#ifndef DS_SERVE_STAGE_H
#define DS_SERVE_STAGE_H

#include "base/opt.h"
#include "frame/frame.h"
#include "frame/hello.h"

struct stage;
struct source; /* one input stream: stdin, a file, or a connection; its answers go where its frames are answered */

struct stage_options {
	const char *input;     /* path or "-" */
	const char *output;    /* path, "-" or NULL: not given (stdout for a filter, the connection for a service) */
	const char *listen, *connect;
	bool force, anywhere;
	int64_t ready_fd, drain_ns, peer_ns; /* ready_fd -1: none */
	uint64_t max_frame;
	const char *log_format;
};

/* What is not in the table, because nobody would write it. */
#define STAGE_DEFAULTS { .ready_fd = -1 }

/* The rows of an option table for these, ready to be pasted in front of a program's own: of filters... */
#define FILTER_OPTIONS(o) \
	{ .name = "input", .letter = 'i', .arg = "FILE", .help = "read from FILE ('-': stdin)", .def = "-", \
	  .type = OPT_STR, .dst = &(o).input }, \
	{ .name = "output", .letter = 'o', .arg = "FILE", \
	  .help = "write to FILE, renamed when complete ('-': stdout)", .type = OPT_STR, .dst = &(o).output }, \
	{ .name = "force", .letter = 'f', .help = "overwrite FILE; write binary to a terminal", \
	  .type = OPT_FLAG, .dst = &(o).force }, \
	{ .name = "connect", .letter = 'c', .arg = "ADDR", .help = "send the output to ADDR, pass on what comes back", \
	  .type = OPT_STR, .dst = &(o).connect, .env = true }, \
	{ .name = "max-frame", .arg = "SIZE", .help = "largest payload accepted", .def = "256M", \
	  .type = OPT_SIZE, .dst = &(o).max_frame, .env = true }, \
	{ .name = "peer-timeout", .arg = "TIME", \
	  .help = "drop a peer that is silent in a request (a rank in a step: 5s)", .def = "30s", \
	  .type = OPT_TIME, .dst = &(o).peer_ns, .env = true }, \
	{ .name = "log-format", .arg = "text|json", .help = "how messages on stderr are written", .def = "text", \
	  .type = OPT_STR, .dst = &(o).log_format, .env = true }

/* ...and of what may be a service, too. */
#define STAGE_OPTIONS(o) \
	{ .name = "listen", .letter = 'l', .arg = "ADDR", .help = "serve on unix:PATH, tcp:HOST:PORT or fd:N", \
	  .type = OPT_STR, .dst = &(o).listen, .env = true }, \
	{ .name = "insecure", .help = "let --listen and --unit use TCP addresses beyond loopback, without TLS", \
	  .type = OPT_FLAG, .dst = &(o).anywhere }, \
	{ .name = "ready-fd", .arg = "N", .help = "write a newline to descriptor N when serving", \
	  .type = OPT_INT, .dst = &(o).ready_fd, .max = 1 << 20 }, \
	{ .name = "drain-timeout", .arg = "TIME", .help = "let running work finish this long after SIGTERM", \
	  .def = "25s", .type = OPT_TIME, .dst = &(o).drain_ns, .env = true }, \
	FILTER_OPTIONS(o)

struct stage_ops {
	/* A frame's head from src (HELLO and END are handled by the stage).  *dst may be set to memory for its
	 * data_len payload bytes. A non-zero return refuses the whole source (bad stream). */
	int (*head)(void *ctx, struct source *src, struct frame *f, void **dst, struct ds_err *err);
	/* The complete frame.  Errors that concern one request only are answered with stage_error and return 0. */
	int (*frame)(void *ctx, struct source *src, struct frame *f, struct ds_err *err);
	/* Raw input (stage_config.raw_input): bytes as they come; eof: the last call (n may be 0). */
	int (*raw)(void *ctx, struct source *src, const char *p, size_t n, bool eof, struct ds_err *err);
	/* Raw output (stage_config.raw_output): instead of head/frame answers being forwarded, the program writes
	 * text with stage_write.  With -c the frames that come back are given to head and frame (src: whose request
	 * they answer). */
	/* Raw output with -c: the downstream peer was lost before it had answered this request; id: "" if it was not
	 * read.  gone follows.  NULL: nobody asks. */
	int (*unanswered)(void *ctx, struct source *src, uint64_t stream, const char *id, const struct ds_err *why,
		struct ds_err *err);
	/* All of the source's answers are written, END follows: the last word, perhaps said twice (may be NULL). */
	void (*ending)(void *ctx, struct source *src);
	/* The source is finished or lost: no callback for it follows; requests of a lost source (complete = false)
	 * are to be dropped. */
	void (*gone)(void *ctx, struct source *src, bool complete);
	/* The peer's HELLO was read and agreed with ours (may be NULL). */
	int (*hello)(void *ctx, struct source *src, const struct hello *h, struct ds_err *err);
	/* One step of work, after each round of input; *busy: there is more to do at once (false at first). */
	int (*step)(void *ctx, bool *busy, struct ds_err *err);
	/* A descriptor that is polled beside the streams and is readable when step is to be called though nothing came
	 * in; step sees to it that it is not any more.  -1: none now.  NULL: none ever. */
	int (*bell)(void *ctx);
	/* Others wait for what this process does, whoever reads its answers: writing them may not block.  NULL:
	 * nobody. */
	bool (*awaited)(void *ctx);
	/* Of what is held something waits for the bell: nothing to do is no sign that more must come in.  NULL:
	 * never. */
	bool (*waits)(void *ctx);
	/* Runs fn(arg), which may wait for others at length, and does meanwhile what step would.  NULL: nothing else
	 * is to be done. */
	int (*aside)(void *ctx, int (*fn)(void *arg, struct ds_err *err), void *arg, struct ds_err *err);
	/* Draining began: refuse new requests with stage_error(DS_TEMP).  NULL: the stage refuses request frames
	 * itself. */
	void (*drain)(void *ctx);
	/* True where a request of src is held whose frames have come in part only.  Such a source is truncated where
	 * its input is over and nothing else is to be done, and dropped where it is a connection that stays silent for
	 * --peer-timeout.  NULL: each request is one frame, so what is held came whole. */
	bool (*incomplete)(void *ctx, struct source *src);
	/* SIGUSR1: state as JSON to stderr (may be NULL). */
	void (*state)(void *ctx);
};

struct stage_config {
	struct stage_options opt;
	const struct stage_ops *ops;
	void *ctx;
	struct hello hello; /* what we state; via is completed from the source's HELLO before the output's is sent */
	bool raw_input, raw_output;
};

/* err->text is empty where everything was said already (an answered request's error, a reader of stdout that has
 * gone): print it only if it is not. The caller has called log_init.  SIGPIPE is ignored from here on. Runs to the
 * end (filter: input's end; service: SIGTERM).  0, or the exit code of the first error: a stream that breaks while
 * others are served does not end a service.  A filter whose input is truncated answers what came whole, writes no
 * END, and gives DS_DATA. */
int stage_run(const struct stage_config *cfg, struct ds_err *err);
bool stage_stopped(void); /* the run was ended by a second signal */

/* ---- for callbacks ---- */

/* Answers: to where this source's answers go.  Errors of a lost peer are noted by the stage (gone follows); 0
 * otherwise. */
int stage_send(struct source *src, unsigned type, uint64_t stream, const struct meta_builder *meta,
	const struct iovec *iov, int n, bool hash);
int stage_forward(struct source *src, const struct frame *f);
/* A frame of stream 0 that put writes itself; as stage_send. */
int stage_put(struct source *src, int (*put)(void *ctx, struct frame_writer *w, struct ds_err *err), void *ctx);
/* The name of a request that the program makes itself, before it is sent: the stage says it where its peer is lost. */
void stage_request_id(struct source *src, uint64_t stream, const char *id);
/* An ERROR frame for one request: code, id (NULL: not known), message, retryable; one line on stderr too.  The run's
 * exit code becomes `code` in a filter. */
int stage_error(struct source *src, uint64_t stream, const char *id, bool retryable, const struct ds_err *why);
/* Raw output, to the output (also with -c). */
int stage_write(struct source *src, const void *p, size_t n);
/* The program still has work for src: END goes out only when every hold is released.  A source whose input is over
 * fails with DS_DATA when step says that it has nothing to do, nothing is blocked, no answer of this source is awaited
 * from downstream, and `incomplete` says that what is held came in part only. */
void source_hold(struct source *src);
void source_release(struct source *src);
/* The output of src takes no more now: do not produce for it. */
bool source_blocked(const struct source *src);
/* Do not read from src until resumed (the program is full).  Its sender is told that we live, now and then, by a
 * droppable STAT frame. */
void source_pause(struct source *src, bool pause);
/* Refuses a request whose name one of the same source still bears: their answers could not be told apart, so the
 * stream is refused (DS_DATA).  The stage does so where the one that bears it has been handed over downstream. */
int source_twice(struct source *src, const struct frame *f, struct ds_err *err);
const char *source_name(const struct source *src);
/* What it said of itself, once its first frame was seen. */
const struct hello *source_hello(const struct source *src);

#endif
