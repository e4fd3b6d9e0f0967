/* A small echo program on lib/serve, and a client that talks to it. */
#ifndef DS_TESTS_ECHO_H
#define DS_TESTS_ECHO_H

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "frame/messages.h"
#include "frames.h"
#include "net/addr.h"
#include "serve/stage.h"

/* ---- the program under test: answers a request with as many tokens as "max_tokens" says, one a step, each with a
 * payload ---- */

enum { JOBS = 4096 };

/* half: a request that says "half" is one whose rest never comes. */
struct job { struct source *src; uint64_t stream, left, index, size; bool used, half; };
static struct { struct job job[JOBS]; size_t n; bool relay, waits; } echo;

static struct job *job_new(struct source *src, const struct frame *f)
{
	for (size_t i = 0; i < JOBS; i++)
		if (!echo.job[i].used) {
			struct job *j = &echo.job[i];

			*j = (struct job){ .src = src, .stream = f->stream, .used = true };
			meta_uint(f->meta, "tokens", &j->left);
			meta_uint(f->meta, "size", &j->size);
			echo.n++;
			return j;
		}
	return NULL;
}

TAP_USED static int echo_frame(void *ctx, struct source *src, struct frame *f, struct ds_err *err)
{
	bool half = meta_uint(f->meta, "half", &(uint64_t){ 0 }) == META_OK;
	struct ds_err why;
	struct job *j;

	(void)ctx;
	if ((echo.relay && !half) || f->type != FRAME_REQUEST)
		return stage_forward(src, f);
	if (frame_check_payload(f, err))
		return err->code;
	if (meta_uint(f->meta, "bad", &(uint64_t){ 0 }) == META_OK) {
		err_set(&why, DS_DATA, "request %016llx is bad", (unsigned long long)f->stream);
		return stage_error(src, f->stream, NULL, false, &why);
	}
	j = job_new(src, f);
	if (!j)
		return err_set(err, DS_BUG, "too many jobs");
	j->half = half;
	source_hold(src);
	return 0;
}

TAP_USED static int echo_step(void *ctx, bool *busy, struct ds_err *err)
{
	static char data[1 << 20];
	struct meta_builder *b = meta_new();

	(void)ctx;
	(void)err;
	for (size_t i = 0; i < JOBS && echo.n; i++) {
		struct job *j = &echo.job[i];
		struct iovec iov = { data, j->size };

		if (!j->used || source_blocked(j->src) || echo.waits || j->half)
			continue;
		meta_reset(b);
		meta_put_uint(b, "index", j->index++);
		*busy = true;
		if (j->left-- > 0) {
			stage_send(j->src, FRAME_TOKEN, j->stream, b, &iov, j->size != 0, false);
			continue;
		}
		stage_send(j->src, FRAME_DONE, j->stream, b, NULL, 0, false);
		source_release(j->src);
		j->used = false;
		echo.n--;
	}
	meta_free(b);
	return 0;
}

TAP_USED static void echo_gone(void *ctx, struct source *src, bool complete)
{
	(void)ctx;
	(void)complete;
	for (size_t i = 0; i < JOBS; i++)
		if (echo.job[i].used && echo.job[i].src == src) {
			echo.job[i].used = false;
			echo.n--;
		}
}

TAP_USED static bool echo_incomplete(void *ctx, struct source *src)
{
	(void)ctx;
	for (size_t i = 0; i < JOBS; i++)
		if (echo.job[i].used && echo.job[i].half && echo.job[i].src == src)
			return true;
	return false;
}

static const struct stage_ops echo_ops = {
	.frame = echo_frame, .step = echo_step, .gone = echo_gone, .incomplete = echo_incomplete
};

TAP_USED static struct stage_options defaults(void)
{
	return (struct stage_options){
		.input = "-", .ready_fd = -1, .drain_ns = 2000000000, .peer_ns = 500000000, .max_frame = 64 << 20
	};
}

TAP_USED static int run_program(struct stage_options o, const char *model)
{
	struct stage_config cfg = { .opt = o, .ops = &echo_ops,
		.hello = { .program = "echo", .version = "1", .role = "test" } };
	struct ds_err err;
	int rc;

	snprintf(cfg.hello.model, sizeof cfg.hello.model, "%s", model);
	log_init("echo", 0, LOG_WARN);
	rc = stage_run(&cfg, &err);
	if (rc && err.text[0])
		log_err(&err);
	return rc;
}

/* A child that runs it with in and out as stdin and stdout (-1: /dev/null), stderr to `errors`; ready: waits until it
 * serves. */
TAP_USED static pid_t start(struct stage_options o, int in, int out, int errors, bool ready)
{
	int fds[2];
	char c;
	pid_t pid;

	if (pipe(fds))
		tap_bail("pipe");
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		dup2(in >= 0 ? in : open("/dev/null", O_RDONLY), 0);
		dup2(out >= 0 ? out : open("/dev/null", O_WRONLY), 1);
		dup2(errors >= 0 ? errors : open("/dev/null", O_WRONLY), 2);
		dup2(fds[1], 200);
		for (int fd = 3; fd < 200; fd++)
			close(fd);
		o.ready_fd = ready ? 200 : -1;
		alarm(60);
		_exit(run_program(o, "m"));
	}
	close(fds[1]);
	if (ready && read(fds[0], &c, 1) != 1)
		tap_diag("the service did not start");
	close(fds[0]);
	return pid;
}

TAP_USED static int finish(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* ---- services ---- */

static char socket_dir[] = "/tmp/dsutils-stage-XXXXXX";

TAP_USED static const char *socket_address(const char *name)
{
	static char text[4][200];
	static unsigned k;
	char *s = text[k++ % 4];

	snprintf(s, sizeof text[0], "unix:%s/%s", socket_dir, name);
	return s;
}

/* patience: --peer-timeout in seconds, 0: the default of half a second */
TAP_USED static pid_t serve_for(const char *address, const char *connect, int patience)
{
	struct stage_options o = defaults();

	o.listen = address;
	o.connect = connect;
	if (patience)
		o.peer_ns = patience * INT64_C(1000000000);
	return start(o, -1, -1, -1, true);
}

TAP_USED static pid_t serve_at(const char *address, const char *connect)
{
	return serve_for(address, connect, 0);
}

TAP_USED static const char *free_tcp(void)
{
	static char text[64];
	struct addr a;
	struct ds_err err;
	int fd;

	if (addr_parse("tcp:127.0.0.1:0", &a, &err) || addr_listen(&a, false, &fd, &err))
		tap_bail("%s", err.text);
	addr_local(fd, text, sizeof text);
	addr_unlisten(&a, fd);
	return text;
}

/* ---- a client ---- */

struct client {
	int fd;
	struct frame_writer *w;
	struct frame_reader *r;
	struct meta_builder *b;
};

TAP_USED static void client_on(struct client *c, int fd)
{
	struct ds_err err;

	c->fd = fd;
	c->b = meta_new();
	if (frame_writer_new(&c->w, fd, "service", &err) || frame_reader_new(&c->r, fd, "service", 0, &err))
		tap_bail("%s", err.text);
}

TAP_USED static void client_open(struct client *c, const char *address)
{
	struct addr a;
	struct ds_err err;
	int fd;

	if (addr_parse(address, &a, &err) || addr_connect(&a, 3000000000, &fd, &err))
		tap_bail("%s", err.text);
	fd_nonblock(fd, false);
	client_on(c, fd);
}

TAP_USED static void client_close(struct client *c)
{
	frame_writer_free(c->w);
	frame_reader_free(c->r);
	meta_free(c->b);
	close(c->fd);
}

TAP_USED static int say_hello(struct client *c, const char *model)
{
	struct hello h = { .program = "client", .version = "1" };
	struct ds_err err;

	snprintf(h.model, sizeof h.model, "%s", model);
	meta_reset(c->b);
	hello_put(c->b, &h);
	return frame_write(c->w, FRAME_HELLO, 0, 0, c->b, NULL, 0, false, &err);
}

TAP_USED static int ask(struct client *c, uint64_t stream, uint64_t tokens, uint64_t size)
{
	static uint32_t ids[64];
	struct iovec iov = { ids, sizeof ids };
	struct ds_err err;

	meta_reset(c->b);
	meta_put_uint(c->b, "tokens", tokens);
	if (size)
		meta_put_uint(c->b, "size", size);
	return frame_write(c->w, FRAME_REQUEST, 0, stream, c->b, &iov, 1, true, &err);
}

TAP_USED static int ask_half(struct client *c, uint64_t stream)
{
	struct ds_err err;

	meta_reset(c->b);
	meta_put_uint(c->b, "half", 1);
	return frame_write(c->w, FRAME_REQUEST, 0, stream, c->b, NULL, 0, false, &err);
}

TAP_USED static int say_end(struct client *c)
{
	struct ds_err err;

	return frame_write_end(c->w, &err);
}

/* Reads to the end or to the first frame of type `until` (0: none): how many of each type came. */
TAP_USED static int listen_to(struct client *c, unsigned until, unsigned count[FRAME_TYPE_COUNT], uint64_t *code)
{
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	int rc = 0;

	memset(count, 0, FRAME_TYPE_COUNT * sizeof *count);
	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(c->r, &ev, &f, &err);
		if (rc || ev != FRAME_BODY)
			continue;
		count[f->type]++;
		if (f->type == FRAME_ERROR && code)
			meta_uint(f->meta, "code", code);
		if (f->type == until)
			break;
	}
	return rc;
}

TAP_USED static int input_file(unsigned requests, uint64_t tokens, bool end)
{
	int fd = memfd_create("in", 0);
	struct client c;

	client_on(&c, fd);
	say_hello(&c, "m");
	for (unsigned i = 0; i < requests; i++)
		ask(&c, i + 1, tokens, 0);
	if (end)
		say_end(&c);
	c.fd = memfd_create("unused", 0);
	client_close(&c);
	lseek(fd, 0, SEEK_SET);
	return fd;
}

TAP_USED static unsigned count_output(int fd, unsigned count[FRAME_TYPE_COUNT], int *rc)
{
	struct client c;
	unsigned n = 0;

	lseek(fd, 0, SEEK_SET);
	client_on(&c, fd);
	*rc = listen_to(&c, 0, count, NULL);
	for (unsigned i = 0; i < FRAME_TYPE_COUNT; i++)
		n += count[i];
	client_close(&c);
	return n;
}

#endif
