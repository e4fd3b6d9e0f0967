/* Stages: a descriptor beside the streams for which the step is called. */
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include "echo.h"

static int bell_fd[2]; /* the bell, and where the step says that it was called */

static int bell(void *ctx)
{
	(void)ctx;
	return bell_fd[0];
}

static int bell_step(void *ctx, bool *busy, struct ds_err *err)
{
	char c = '.';

	if (recv(bell_fd[0], &c, 1, MSG_DONTWAIT) == 1)
		c = '!';
	send(bell_fd[0], &c, 1, 0);
	return echo_step(ctx, busy, err);
}

/* Until a step says that it saw the bell; how many did not, or -1 where it was not called. */
static int until_rung(void)
{
	struct pollfd p = { bell_fd[1], POLLIN, 0 };
	int others = 0;
	char c;

	while (poll(&p, 1, 2000) == 1 && read(bell_fd[1], &c, 1) == 1) {
		if (c == '!')
			return others;
		others++;
	}
	return -1;
}

static void test_bell(void)
{
	struct stage_ops ops = echo_ops;
	struct stage_config cfg = { .opt = defaults(), .ops = &ops, .hello = { .program = "echo", .version = "1" } };
	struct pollfd p = { .events = POLLIN };
	struct ds_err err;
	int in[2];
	char c;
	pid_t pid;

	ops.bell = bell;
	ops.step = bell_step;
	if (pipe(in) || socketpair(AF_UNIX, SOCK_STREAM, 0, bell_fd))
		tap_bail("pipe");
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		dup2(in[0], 0);
		dup2(open("/dev/null", O_WRONLY), 1);
		close(in[1]);
		close(bell_fd[1]);
		alarm(60);
		log_init("echo", 0, LOG_WARN);
		_exit(stage_run(&cfg, &err));
	}
	close(in[0]);
	close(bell_fd[0]);
	p.fd = bell_fd[1];
	tap_ok(poll(&p, 1, 2000) == 1, "a step comes before the first sleep: who rings must know of it");
	for (int i = 0; i < 3; i++) {
		if (write(bell_fd[1], "x", 1) != 1)
			tap_bail("write");
		tap_ok(until_rung() >= 0, "the bell rings %d: a step, though nothing came in", i);
	}
	tap_ok(poll(&p, 1, 200) == 0 || (read(p.fd, &c, 1) == 1 && poll(&p, 1, 200) == 0), "silence: no step");
	close(in[1]);
	tap_is_int(finish(pid), DS_DATA, "the input's end is seen, too");
	close(bell_fd[1]);
}

/* Nothing more to do until the bell has rung. */
static int waiting_step(void *ctx, bool *busy, struct ds_err *err)
{
	char c;

	if (recv(bell_fd[0], &c, 1, MSG_DONTWAIT) == 1)
		echo.waits = false;
	return echo_step(ctx, busy, err);
}

static bool none_incomplete(void *ctx, struct source *src)
{
	(void)ctx;
	(void)src;
	return false;
}

/* The fault: requests that had come whole were dropped since they had "come in part only". */
static void test_whole(bool asked)
{
	struct stage_ops ops = echo_ops;
	struct stage_config cfg = { .opt = defaults(), .ops = &ops, .hello = { .program = "echo", .version = "1" } };
	int in = input_file(3, 5, true), out = memfd_create("out", 0), rc;
	unsigned count[FRAME_TYPE_COUNT];
	struct ds_err err;
	pid_t pid;

	ops.bell = bell;
	ops.step = waiting_step;
	ops.incomplete = asked ? none_incomplete : NULL;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, bell_fd))
		tap_bail("socketpair");
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		dup2(in, 0);
		dup2(out, 1);
		close(bell_fd[1]);
		alarm(60);
		echo.waits = true;
		log_init("echo", 0, LOG_WARN);
		_exit(stage_run(&cfg, &err));
	}
	close(bell_fd[0]);
	usleep(300000);
	if (send(bell_fd[1], "x", 1, MSG_NOSIGNAL) != 1)
		tap_diag("it has ended");
	tap_ok(finish(pid) == 0, "requests that came whole and wait, the input's end seen, incomplete %s: kept",
		asked ? "says no" : "is not asked");
	count_output(out, count, &rc);
	tap_ok(!rc && count[FRAME_DONE] == 3 && count[FRAME_END] == 1, "and answered when the bell rings");
	close(bell_fd[1]);
	close(in);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	test_bell();
	test_whole(false);
	test_whole(true);
	return tap_done();
}
