/* Stages: a small echo program as a filter, as a service and in chains of both. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "echo.h"

/* ---- filters ---- */

static void test_filter(void)
{
	unsigned count[FRAME_TYPE_COUNT];
	int in = input_file(3, 5, true), out = memfd_create("out", 0), rc;
	pid_t pid = start(defaults(), in, out, 2, false);

	tap_is_int(finish(pid), 0, "filter: ends with 0");
	count_output(out, count, &rc);
	tap_ok(!rc && count[FRAME_HELLO] == 1 && count[FRAME_TOKEN] == 15 && count[FRAME_DONE] == 3 &&
			count[FRAME_END] == 1,
		"filter: every request is answered");
	close(in);
}

static void test_truncated(void)
{
	unsigned count[FRAME_TYPE_COUNT];
	int in = input_file(3, 5, false), out = memfd_create("out", 0), errors = memfd_create("err", 0), rc;
	size_t n;
	char *text;
	pid_t pid = start(defaults(), in, out, errors, false);

	tap_is_int(finish(pid), DS_DATA, "truncated input: 65");
	count_output(out, count, &rc);
	tap_ok(rc == DS_DATA && count[FRAME_DONE] == 3 && count[FRAME_END] == 0,
		"what came whole is answered, without END");
	text = (char *)bytes_of(errors, &n);
	tap_ok(n && text[n - 1] == '\n' && memchr(text, '\n', n) == text + n - 1, "one line on stderr");
	free(text);
	close(in);
	close(errors);
}

/* What follows END is neither ignored nor waited for by the reader of our output. */
static void test_tail(void)
{
	unsigned count[FRAME_TYPE_COUNT];
	int in = input_file(3, 5, true), fds[2], to[2], out = memfd_create("out", 0), rc;
	size_t n;
	uint8_t *p = bytes_of(in, &n);
	struct client c;
	pid_t pid;

	lseek(in, 0, SEEK_END);
	if (write(in, p, n) != (ssize_t)n || pipe(fds) || pipe(to))
		tap_bail("pipe");
	lseek(in, 0, SEEK_SET);
	tap_is_int(finish(start(defaults(), in, out, -1, false)), DS_DATA, "two streams, one behind the other: 65");
	count_output(out, count, &rc);
	tap_ok(count[FRAME_DONE] == 3, "the first is answered");
	pid = start(defaults(), fds[0], to[1], 2, false);
	close(to[1]);
	close(fds[0]);
	if (write(fds[1], p, n) != (ssize_t)n)
		tap_bail("pipe");
	client_on(&c, to[0]);
	tap_ok(listen_to(&c, 0, count, NULL) == 0 && count[FRAME_DONE] == 3,
		"a pipe left open after END: all answers, END and end of output");
	tap_ok(waitpid(pid, &rc, WNOHANG) == 0, "while the end of input is waited for");
	close(fds[1]);
	tap_is_int(finish(pid), 0, "which comes");
	client_close(&c);
	close(in);
	free(p);
}

static int on_terminal(bool force)
{
	struct stage_options o = defaults();
	int in = input_file(1, 2, true), terminal = posix_openpt(O_RDWR | O_NOCTTY), slave, rc;

	if (terminal < 0 || grantpt(terminal) || unlockpt(terminal))
		return -1;
	slave = open(ptsname(terminal), O_RDWR | O_NOCTTY);
	o.force = force;
	rc = finish(start(o, in, slave, -1, false));
	close(slave);
	close(terminal);
	close(in);
	return rc;
}

static void test_terminal(void)
{
	int rc = on_terminal(false);

	if (rc < 0) {
		tap_skip("no pseudo-terminal here");
		return;
	}
	tap_is_int(rc, DS_USAGE, "frames for a terminal: 64");
	tap_is_int(on_terminal(true), 0, "but with --force");
}

static void test_output_file(void)
{
	char path[] = "/tmp/dsutils-stage-XXXXXX", file[100];
	struct stage_options o = defaults();
	int in, rc;
	unsigned count[FRAME_TYPE_COUNT];
	char command[200];

	if (!mkdtemp(path))
		tap_bail("mkdtemp");
	snprintf(file, sizeof file, "%s/out", path);
	o.output = file;
	in = input_file(1, 5, true);
	tap_is_int(finish(start(o, in, -1, 2, false)), 0, "-o FILE");
	rc = open(file, O_RDONLY);
	tap_ok(rc >= 0 && count_output(rc, count, &rc) == 8 && !rc, "holds the stream");
	lseek(in, 0, SEEK_SET);
	tap_is_int(finish(start(o, in, -1, -1, false)), DS_USAGE, "is not overwritten");
	o.force = true;
	lseek(in, 0, SEEK_SET);
	tap_is_int(finish(start(o, in, -1, 2, false)), 0, "but with --force");
	unlink(file);
	o.force = false;
	close(in);
	in = input_file(1, 5, false);
	tap_is_int(finish(start(o, in, -1, -1, false)), DS_DATA, "-o FILE of a truncated input");
	snprintf(command, sizeof command, "test -z \"$(ls -A '%s')\"", path);
	tap_ok(system(command) == 0, "leaves nothing behind");
	close(in);
	{
		int fds[2];
		pid_t pid;

		if (pipe(fds))
			tap_bail("pipe");
		pid = start(o, fds[0], -1, -1, true);
		kill(pid, SIGTERM);
		tap_is_int(finish(pid), 1000 + SIGTERM, "a filter dies of SIGTERM");
		tap_ok(system(command) == 0, "and takes its unfinished file along");
		close(fds[0]);
		close(fds[1]);
	}
	o.output = "/dev/full";
	in = input_file(1, 5, true);
	tap_is_int(finish(start(o, in, -1, -1, false)), DS_IO, "/dev/full: 74");
	close(in);
	rmdir(path);
}

static void test_sigpipe(void)
{
	int in = input_file(1, 100000, true), fds[2], errors = memfd_create("err", 0);
	pid_t pid;
	size_t n;

	if (pipe(fds))
		tap_bail("pipe");
	pid = start(defaults(), in, fds[1], errors, false);
	close(fds[1]);
	close(fds[0]);
	tap_is_int(finish(pid), DS_SIGPIPE, "a reader that goes: 141");
	free(bytes_of(errors, &n));
	tap_is_int((long long)n, 0, "without a word");
	close(in);
	if (pipe(fds))
		tap_bail("pipe");
	{
		int wait_in[2];

		if (pipe(wait_in))
			tap_bail("pipe");
		pid = start(defaults(), wait_in[0], fds[1], errors, true);
		close(fds[1]);
		close(fds[0]);
		tap_is_int(finish(pid), DS_SIGPIPE, "also while it waits for input");
		close(wait_in[0]);
		close(wait_in[1]);
	}
	close(errors);
}

static void test_mismatch(void)
{
	int fd = memfd_create("in", 0), errors = memfd_create("err", 0);
	struct client c;
	size_t n;
	char *text;

	client_on(&c, fd);
	say_hello(&c, "other");
	ask(&c, 1, 1, 0);
	say_end(&c);
	lseek(fd, 0, SEEK_SET);
	tap_is_int(finish(start(defaults(), fd, -1, errors, false)), DS_PROTO, "another model: 76");
	text = (char *)bytes_of(errors, &n);
	text[n] = 0;
	tap_ok(strstr(text, "'other'") && strstr(text, "'m'"), "with both values in the message");
	free(text);
	client_close(&c);
	close(errors);
}

/* ---- services ---- */

static void test_service(const char *address)
{
	enum { CLIENTS = 60 };
	pid_t pid = serve_at(address, NULL);
	struct client c[CLIENTS];
	unsigned count[FRAME_TYPE_COUNT], good = 0;

	for (int i = 0; i < CLIENTS; i++) {
		client_open(&c[i], address);
		say_hello(&c[i], "m");
		ask(&c[i], 1, (uint64_t)i, 100);
		ask(&c[i], 2, 3, 0);
	}
	for (int i = 0; i < CLIENTS; i++)
		say_end(&c[i]);
	for (int i = 0; i < CLIENTS; i++) {
		shutdown(c[i].fd, i % 2 ? SHUT_WR : SHUT_RD + 100); /* every other half-closes */
		good += listen_to(&c[i], 0, count, NULL) == 0 && count[FRAME_TOKEN] == (unsigned)i + 3 &&
			count[FRAME_DONE] == 2 && count[FRAME_HELLO] == 1 && count[FRAME_END] == 1;
		client_close(&c[i]);
	}
	tap_ok(good == CLIENTS, "%s: %u of %d clients at once got their answers", address, good, CLIENTS);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), 0, "SIGTERM of an idle service: 0");
}

/* Bad clients do not disturb a good one. */
static void test_bad_clients(void)
{
	const char *address = socket_address("bad");
	pid_t pid = serve_at(address, NULL);
	struct client good, bad;
	unsigned count[FRAME_TYPE_COUNT];
	uint64_t code = 0;
	size_t n;
	uint8_t *p = sample(&n, 4096);

	client_open(&good, address);
	say_hello(&good, "m");
	client_open(&bad, address);
	say_hello(&bad, "other");
	tap_ok(listen_to(&bad, FRAME_ERROR, count, &code) == 0 && code == DS_PROTO,
		"another model is refused with an error frame");
	client_close(&bad);
	client_open(&bad, address);
	tap_ok(write(bad.fd, "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n", 49) == 49 &&
		listen_to(&bad, FRAME_ERROR, count, &code) == 0 && code == DS_DATA, "so is another protocol");
	client_close(&bad);
	client_open(&bad, address);
	ask(&bad, 1, 1, 0);
	tap_ok(listen_to(&bad, FRAME_ERROR, count, &code) == 0 && code == DS_DATA, "so is a stream without hello");
	client_close(&bad);
	client_open(&bad, address); /* the middle of a frame, then silence */
	tap_ok(write(bad.fd, p, 100) == 100 && listen_to(&bad, FRAME_ERROR, count, &code) == 0 &&
			code == DS_UNAVAILABLE,
		"a peer that is silent in the middle of a frame is dropped");
	client_close(&bad);
	client_open(&bad, address);
	say_hello(&bad, "m");
	ask(&bad, 1, 1 << 30, 1000);
	listen_to(&bad, FRAME_TOKEN, count, NULL);
	client_close(&bad); /* goes away in the middle of its answer */
	ask(&good, 5, 10, 0);
	tap_ok(listen_to(&good, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 10,
		"the good client is served meanwhile");
	meta_reset(good.b);
	meta_put_uint(good.b, "bad", 1);
	{
		struct ds_err err;

		frame_write(good.w, FRAME_REQUEST, 0, 9, good.b, NULL, 0, false, &err);
	}
	ask(&good, 10, 2, 0);
	tap_ok(listen_to(&good, FRAME_DONE, count, &code) == 0 && count[FRAME_ERROR] == 1 && count[FRAME_TOKEN] == 2,
		"a bad request gets an error, the next one its answer");
	client_close(&good);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), 0, "the service is well");
	free(p);
}

static long resident(pid_t pid)
{
	char path[64], line[200];
	long kb = -1;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof line, f))
		sscanf(line, "VmHWM: %ld", &kb);
	if (f)
		fclose(f);
	return kb;
}

static double cpu_seconds(pid_t pid)
{
	char path[64];
	unsigned long user = 0, sys = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	if (f && fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) != 2)
		user = 0;
	if (f)
		fclose(f);
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

/* 300 MB of answers for a client that does not read: back-pressure bounds the memory, nothing spins, then all
 * arrives. */
static void test_slow_reader(void)
{
	const char *address = socket_address("slow");
	pid_t pid = serve_for(address, NULL, 20);
	struct client c;
	unsigned count[FRAME_TYPE_COUNT];
	double cpu;

	client_open(&c, address);
	say_hello(&c, "m");
	ask(&c, 1, 300, 1 << 20);
	nanosleep(&(struct timespec){ .tv_nsec = 500000000 }, NULL);
	cpu = cpu_seconds(pid);
	nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
	cpu = cpu_seconds(pid) - cpu;
	tap_ok(cpu < 0.1, "a blocked service does not spin (%.2f s in a second)", cpu);
	say_end(&c);
	tap_ok(listen_to(&c, 0, count, NULL) == 0 && count[FRAME_TOKEN] == 300, "a slow reader gets everything");
	if (strstr(tap_build(), "build-"))
		tap_skip("memory is not measured under sanitizers");
	else
		tap_ok(resident(pid) < 64 << 10, "memory stays bounded: %ld KB", resident(pid));
	client_close(&c);
	cpu = cpu_seconds(pid);
	nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
	tap_ok(cpu_seconds(pid) - cpu < 0.02, "idle uses no CPU");
	kill(pid, SIGTERM);
	finish(pid);
}

/* Nobody waits for an idle client, nor is it cut with those whose work takes too long. */
static void test_drain_idle(const char *address)
{
	pid_t pid = serve_for(address, NULL, 20);
	struct client late, idle;
	unsigned count[FRAME_TYPE_COUNT];
	uint64_t code = 0;

	client_open(&idle, address);
	say_hello(&idle, "m");
	listen_to(&idle, FRAME_HELLO, count, NULL);
	kill(pid, SIGTERM);
	tap_ok(listen_to(&idle, 0, count, NULL) == 0 && count[FRAME_END] == 1, "nothing runs: END at once");
	client_close(&idle);
	tap_is_int(finish(pid), 0, "and 0");
	pid = serve_for(address, NULL, 20);
	client_open(&idle, address);
	client_open(&late, address);
	say_hello(&idle, "m");
	say_hello(&late, "m");
	ask(&late, 1, 1 << 30, 0);
	listen_to(&late, FRAME_TOKEN, count, NULL);
	kill(pid, SIGTERM);
	tap_ok(listen_to(&late, FRAME_ERROR, count, &code) == 0 && code == DS_TEMP, "work that takes too long: 75");
	tap_ok(listen_to(&idle, 0, count, NULL) == 0 && count[FRAME_END] == 1 && count[FRAME_ERROR] == 0,
		"for an idle connection END");
	client_close(&idle);
	client_close(&late);
	tap_is_int(finish(pid), DS_TEMP, "75");
}

static void test_drain(void)
{
	const char *address = socket_address("drain");
	pid_t pid = serve_at(address, NULL);
	struct client busy, idle, late;
	unsigned count[FRAME_TYPE_COUNT];
	uint64_t code = 0;
	struct addr a;
	struct ds_err err;
	int fd;

	client_open(&busy, address);
	client_open(&idle, address);
	say_hello(&busy, "m");
	say_hello(&idle, "m");
	ask(&busy, 1, 60, 1 << 20);
	listen_to(&busy, FRAME_TOKEN, count, NULL);
	kill(pid, SIGTERM);
	kill(pid, SIGTERM); /* as timeout(1) does: to the program, then to its group */
	nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
	ask(&idle, 3, 5, 0);
	tap_ok(listen_to(&idle, FRAME_ERROR, count, &code) == 0 && code == DS_TEMP && count[FRAME_END] == 0,
		"draining: an idle connection that asks is refused with 75");
	code = 0;
	ask(&busy, 2, 5, 0);
	tap_ok(addr_parse(address, &a, &err) == 0 && addr_connect(&a, 1, &fd, &err) == DS_UNAVAILABLE,
		"new connections are not taken");
	tap_ok(listen_to(&busy, FRAME_DONE, count, &code) == 0 && count[FRAME_TOKEN] == 59,
		"running work is finished: signals that come together are one");
	tap_ok((count[FRAME_ERROR] && code == DS_TEMP) || (listen_to(&busy, 0, count, &code) == 0 && code == DS_TEMP),
		"new requests are refused with 75");
	tap_ok(listen_to(&idle, 0, count, NULL) == 0 && count[FRAME_END] == 1 && count[FRAME_ERROR] == 0,
		"and gets END when the work is done");
	client_close(&idle);
	client_close(&busy);
	tap_is_int(finish(pid), 0, "drained: 0");
	test_drain_idle(address);
	pid = serve_for(address, NULL, 20);
	client_open(&late, address);
	say_hello(&late, "m");
	ask(&late, 1, 1 << 30, 1 << 20);
	listen_to(&late, FRAME_TOKEN, count, NULL);
	kill(pid, SIGTERM);
	nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), DS_TEMP, "a second signal stops now: 75");
	client_close(&late);
	pid = serve_for(address, NULL, 20);
	client_open(&late, address);
	say_hello(&late, "m");
	ask(&late, 1, 1 << 30, 1 << 20);
	listen_to(&late, FRAME_TOKEN, count, NULL);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), DS_TEMP, "work that outlasts the drain time is cut: 75");
	client_close(&late);
	tap_ok(access(address + 5, F_OK) != 0, "the socket is removed");
}

/* ---- chains ---- */

static void test_connect(void)
{
	const char *address = socket_address("down");
	pid_t service = serve_at(address, NULL), pid;
	struct stage_options o = defaults();
	unsigned count[FRAME_TYPE_COUNT];
	int in = input_file(4, 6, true), out = memfd_create("out", 0), rc;

	o.connect = address;
	echo.relay = true;
	pid = start(o, in, out, 2, false);
	tap_is_int(finish(pid), 0, "-c: a filter in front of a service");
	count_output(out, count, &rc);
	tap_ok(!rc && count[FRAME_TOKEN] == 24 && count[FRAME_DONE] == 4 && count[FRAME_END] == 1 &&
			count[FRAME_HELLO] == 1,
		"passes on what comes back");
	close(in);
	in = input_file(2, 1 << 30, true);
	out = memfd_create("out", 0);
	pid = start(o, in, out, -1, true);
	nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
	kill(service, SIGKILL);
	tap_is_int(finish(pid), DS_UNAVAILABLE, "the loss of the service: 69");
	count_output(out, count, &rc);
	tap_ok(rc == DS_DATA && count[FRAME_ERROR] == 2 && count[FRAME_END] == 0,
		"with an error for every open request, without END");
	finish(service);
	echo.relay = false;
	close(in);
	o.connect = socket_address("nobody");
}

static void test_middle(void)
{
	const char *down = socket_address("far"), *address = socket_address("mid");
	pid_t far = serve_at(down, NULL), mid;
	enum { CLIENTS = 20 };
	struct client c[CLIENTS], twin;
	unsigned count[FRAME_TYPE_COUNT], good = 0;
	uint64_t code = 0;

	echo.relay = true;
	mid = serve_at(address, down);
	echo.relay = false;
	for (unsigned i = 0; i < CLIENTS; i++) {
		client_open(&c[i], address);
		say_hello(&c[i], "m");
		ask(&c[i], 100 + i, i, 10);
		ask(&c[i], 200 + i, 1, 10);
	}
	for (unsigned i = 0; i < CLIENTS; i++) {
		say_end(&c[i]);
		good += listen_to(&c[i], 0, count, NULL) == 0 && count[FRAME_TOKEN] == i + 1 && count[FRAME_DONE] == 2;
		client_close(&c[i]);
	}
	tap_ok(good == CLIENTS, "client - service - service: %u of %d clients got their own answers", good, CLIENTS);
	client_open(&c[0], address);
	client_open(&twin, address);
	say_hello(&c[0], "m");
	say_hello(&twin, "m");
	ask(&c[0], 7, 1 << 30, 1000);
	listen_to(&c[0], FRAME_TOKEN, count, NULL);
	ask(&twin, 7, 1, 0);
	tap_ok(listen_to(&twin, FRAME_ERROR, count, &code) == 0 && code == DS_TEMP, "a stream id in use is refused");
	ask(&twin, 8, 3, 0);
	tap_ok(listen_to(&twin, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 3, "another is served");
	kill(far, SIGKILL);
	finish(far);
	tap_ok(listen_to(&c[0], FRAME_ERROR, count, &code) == 0 && code == DS_UNAVAILABLE,
		"the loss of the far service is told");
	tap_ok(listen_to(&twin, 0, count, NULL) == 0 && count[FRAME_END] == 1, "idle clients get END");
	client_close(&c[0]);
	client_close(&twin);
	tap_is_int(finish(mid), DS_UNAVAILABLE, "and the middle drains and ends with 69");
}

static void test_one_stream(void)
{
	const char *address = socket_address("one");
	struct stage_options o = defaults();
	unsigned count[FRAME_TYPE_COUNT];
	int out = memfd_create("out", 0), rc;
	struct client c;
	pid_t pid;

	o.listen = address;
	o.output = "-";
	pid = start(o, -1, out, 2, true);
	client_open(&c, address);
	say_hello(&c, "m");
	ask(&c, 1, 4, 0);
	say_end(&c);
	tap_ok(listen_to(&c, 0, count, NULL) == 0 && count[FRAME_END] == 1 && count[FRAME_HELLO] == 1,
		"-l with -o: hello and END for the client");
	client_close(&c);
	tap_is_int(finish(pid), 0, "one stream, then the end");
	count_output(out, count, &rc);
	tap_ok(!rc && count[FRAME_TOKEN] == 4 && count[FRAME_DONE] == 1, "the answers are in the output");
}

/* Out of descriptors: waits, does not spin, goes on. */
static void test_emfile(void)
{
	const char *address = socket_address("full");
	struct client c[40], last;
	unsigned count[FRAME_TYPE_COUNT];
	struct rlimit rl, was;
	pid_t pid;
	double cpu;

	getrlimit(RLIMIT_NOFILE, &was);
	rl = was;
	rl.rlim_cur = 210; /* 200 is the ready descriptor in start(), closed when it is ready */
	setrlimit(RLIMIT_NOFILE, &rl);
	pid = serve_at(address, NULL);
	setrlimit(RLIMIT_NOFILE, &was);
	rl.rlim_cur = rl.rlim_max = 30;
	prlimit(pid, RLIMIT_NOFILE, &rl, NULL);
	for (int i = 0; i < 40; i++)
		client_open(&c[i], address);
	cpu = cpu_seconds(pid);
	nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
	tap_ok(cpu_seconds(pid) - cpu < 0.1, "no descriptors left: no spinning");
	for (int i = 0; i < 40; i++)
		client_close(&c[i]);
	client_open(&last, address);
	say_hello(&last, "m");
	ask(&last, 1, 2, 0);
	tap_ok(listen_to(&last, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 2, "and it serves again");
	client_close(&last);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), 0, "drains");
}

/* Connections die at random moments; the service lives. */
static void test_killed_clients(void)
{
	const char *address = socket_address("kill");
	pid_t pid = serve_at(address, NULL);
	struct client last;
	unsigned count[FRAME_TYPE_COUNT];

	for (int i = 0; i < 30; i++) {
		pid_t child;

		fflush(stdout);
		child = fork();
		if (child == 0) {
			struct client c;

			client_open(&c, address);
			say_hello(&c, "m");
			for (uint64_t k = 1;; k++)
				ask(&c, k, 3, 20000);
		}
		nanosleep(&(struct timespec){ .tv_nsec = 3000000 + i * 500000 }, NULL);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	client_open(&last, address);
	say_hello(&last, "m");
	ask(&last, 1, 2, 0);
	tap_ok(listen_to(&last, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 2,
		"clients killed in the middle of frames");
	client_close(&last);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), 0, "the service is well");
}

/* More connections than a service holds at a time: the others are accepted later. */
static void test_many(void)
{
	enum { CLIENTS = 1100 };
	static struct client c[CLIENTS];
	const char *address = socket_address("many");
	struct rlimit rl;
	unsigned count[FRAME_TYPE_COUNT], good = 0;
	pid_t pid;

	getrlimit(RLIMIT_NOFILE, &rl);
	if (rl.rlim_max < CLIENTS + 300) {
		tap_skip("not enough descriptors for %d connections", CLIENTS);
		return;
	}
	rl.rlim_cur = rl.rlim_max;
	setrlimit(RLIMIT_NOFILE, &rl);
	pid = serve_at(address, NULL);
	for (int i = 0; i < CLIENTS; i++) {
		client_open(&c[i], address);
		say_hello(&c[i], "m");
		ask(&c[i], 1, 2, 0);
		say_end(&c[i]);
	}
	for (int i = 0; i < CLIENTS; i++) {
		good += listen_to(&c[i], 0, count, NULL) == 0 && count[FRAME_TOKEN] == 2;
		client_close(&c[i]);
	}
	tap_ok(good == CLIENTS, "%u of %d connections are served", good, CLIENTS);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), 0, "and the service drains");
}

static void test_notify(void)
{
	const char *address = socket_address("notify") + 5;
	struct sockaddr_un u = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	char text[64] = "";
	pid_t pid;

	snprintf(u.sun_path, sizeof u.sun_path, "%s", address);
	if (fd < 0 || bind(fd, (struct sockaddr *)&u, sizeof u))
		tap_bail("socket");
	setenv("NOTIFY_SOCKET", address, 1);
	pid = serve_at(socket_address("n"), NULL);
	unsetenv("NOTIFY_SOCKET");
	tap_ok(recv(fd, text, sizeof text - 1, 0) > 0 && !strcmp(text, "READY=1"), "READY=1 for a supervisor");
	memset(text, 0, sizeof text);
	kill(pid, SIGHUP);
	kill(pid, SIGUSR1);
	kill(pid, SIGTERM);
	tap_ok(recv(fd, text, sizeof text - 1, 0) > 0 && !strcmp(text, "STOPPING=1"), "STOPPING=1");
	tap_is_int(finish(pid), 0, "SIGHUP and SIGUSR1 do not end it");
	close(fd);
	unlink(address);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(socket_dir))
		tap_bail("mkdtemp");
	test_filter();
	test_truncated();
	test_tail();
	test_terminal();
	test_output_file();
	test_sigpipe();
	test_mismatch();
	test_service(socket_address("s"));
	test_service(free_tcp());
	test_bad_clients();
	test_slow_reader();
	test_drain();
	test_connect();
	test_middle();
	test_one_stream();
	test_emfile();
	test_killed_clients();
	test_many();
	test_notify();
	rmdir(socket_dir);
	return tap_done();
}
