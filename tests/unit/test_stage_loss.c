/* Stages that lose a peer, or have one that does not play its part: nothing vanishes, nobody else suffers. */
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include "echo.h"

static void rest(int ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L }, NULL);
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static pid_t relay_at(const char *address, const char *down, int patience)
{
	pid_t pid;

	echo.relay = true;
	pid = serve_for(address, down, patience);
	echo.relay = false;
	return pid;
}

static int say(struct client *c, unsigned type, uint64_t stream, size_t size)
{
	static char data[1 << 20];
	struct iovec iov = { data, size };
	struct ds_err err;

	meta_reset(c->b);
	if (type == FRAME_ERROR) {
		meta_put_uint(c->b, "code", 65);
		meta_put_cstr(c->b, "message", "hi");
	}
	return frame_write(c->w, type, 0, stream, c->b, &iov, size != 0, false, &err);
}

/* A frame's bytes, to be sent piece by piece. */
static uint8_t *request_bytes(unsigned before, uint64_t stream, size_t *from, size_t *n)
{
	int fd = memfd_create("frame", 0);
	struct client c;
	uint8_t *p;

	client_on(&c, fd);
	say_hello(&c, "m");
	for (unsigned i = 0; i < before; i++)
		ask_half(&c, i + 1);
	*from = (size_t)lseek(fd, 0, SEEK_CUR);
	ask(&c, stream, 1, 0);
	p = bytes_of(fd, n);
	client_close(&c);
	return p;
}

/* A service, the downstream that it hands everything to, and two clients. */
struct chain {
	pid_t far, mid;
	struct client a, b;
};

static void chain_start(struct chain *c)
{
	const char *down = socket_address("far"), *address = socket_address("mid");

	c->far = serve_at(down, NULL);
	c->mid = relay_at(address, down, 0);
	client_open(&c->a, address);
	client_open(&c->b, address);
	say_hello(&c->a, "m");
	say_hello(&c->b, "m");
}

/* Of one that nothing is amiss with. */
static void chain_stop(struct chain *c)
{
	client_close(&c->a);
	client_close(&c->b);
	kill(c->mid, SIGTERM);
	tap_is_int(finish(c->mid), 0, "the service is well");
	kill(c->far, SIGTERM);
	finish(c->far);
}

/* ---- the downstream peer dies ---- */

static void test_unsent_requests(void)
{
	unsigned count[FRAME_TYPE_COUNT];
	struct chain c;
	uint64_t code = 0;

	chain_start(&c);
	ask(&c.a, 1, 3, 0);
	tap_ok(listen_to(&c.a, FRAME_DONE, count, NULL) == 0, "one request is answered");
	ask(&c.a, 2, 1 << 30, 0); /* handed over */
	listen_to(&c.a, FRAME_TOKEN, count, NULL);
	ask_half(&c.a, 3); /* the program holds these */
	ask_half(&c.a, 4);
	say_end(&c.a);
	rest(100);
	kill(c.far, SIGKILL);
	finish(c.far);
	tap_ok(listen_to(&c.a, 0, count, &code) == 0 && count[FRAME_ERROR] == 3 && count[FRAME_DONE] == 0 &&
			count[FRAME_END] == 1 && code == DS_UNAVAILABLE,
		"downstream lost: an error 69 for every other one, handed over or not");
	tap_ok(listen_to(&c.b, 0, count, NULL) == 0 && count[FRAME_ERROR] == 0, "and none for who asked nothing");
	client_close(&c.a);
	client_close(&c.b);
	tap_is_int(finish(c.mid), DS_UNAVAILABLE, "the service drains and ends with 69");
}

/* Requests that are half read when the peer is lost get one answer, too. */
static void test_requests_cut_by_loss(void)
{
	const char *down = socket_address("far"), *address = socket_address("mid");
	pid_t far = serve_at(down, NULL), mid = relay_at(address, down, 5);
	const size_t cut[2] = { 20, 140 }; /* in the head; in the payload */
	unsigned count[2][FRAME_TYPE_COUNT], two[FRAME_TYPE_COUNT];
	uint64_t code[2] = { 0, 0 };
	struct client c[2];
	size_t from[2], n[2];
	uint8_t *p[2];
	int rc[2];

	for (unsigned i = 0; i < 2; i++) {
		client_open(&c[i], address);
		p[i] = request_bytes(0, 10 + i, &from[i], &n[i]);
		if (write(c[i].fd, p[i], from[i] + cut[i]) != (ssize_t)(from[i] + cut[i]))
			tap_bail("write");
		listen_to(&c[i], FRAME_HELLO, two, NULL);
	}
	rest(100);
	kill(far, SIGKILL);
	finish(far);
	rest(100);
	for (unsigned i = 0; i < 2; i++) {
		size_t left = n[i] - from[i] - cut[i];

		if (write(c[i].fd, p[i] + from[i] + cut[i], left) != (ssize_t)left)
			tap_bail("write");
		rc[i] = listen_to(&c[i], 0, count[i], &code[i]);
		tap_ok(rc[i] == 0 && count[i][FRAME_ERROR] == 1 && code[i] == DS_UNAVAILABLE,
			"a request cut at byte %zu by the loss gets one error 69", cut[i]);
		client_close(&c[i]);
		free(p[i]);
	}
	tap_is_int(finish(mid), DS_UNAVAILABLE, "the service ends");
}

static void test_filter_loss(void)
{
	const char *down = socket_address("far");
	pid_t far = serve_at(down, NULL), pid;
	struct stage_options o = defaults();
	unsigned count[FRAME_TYPE_COUNT];
	int fds[2], out = memfd_create("out", 0), rc;
	struct client c;

	if (pipe(fds))
		tap_bail("pipe");
	o.connect = down;
	echo.relay = true;
	pid = start(o, fds[0], out, -1, true);
	echo.relay = false;
	close(fds[0]);
	client_on(&c, fds[1]);
	say_hello(&c, "m");
	ask(&c, 1, 1 << 30, 0);
	ask_half(&c, 2);
	rest(200);
	kill(far, SIGKILL);
	finish(far);
	tap_is_int(finish(pid), DS_UNAVAILABLE, "a filter ends with the loss");
	client_close(&c);
	count_output(out, count, &rc);
	tap_ok(rc == DS_DATA && count[FRAME_ERROR] == 2 && count[FRAME_END] == 0,
		"having answered what it had not handed over");
}

static bool is_line(int fd, const char *want)
{
	size_t n;
	char *text = (char *)bytes_of(fd, &n);
	bool same = n == strlen(want) && memcmp(text, want, n) == 0;

	if (!same)
		tap_diag("%.*s", (int)n, text);
	free(text);
	close(fd);
	return same;
}

/* Until the process has read all of the pipe and sleeps: it has passed on what it can. */
static void wait_read(int fd, pid_t pid)
{
	char path[64], state = 0;
	int left = 1;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	for (int i = 0; i < 1000 && (left || state != 'S'); i++) {
		FILE *f;

		rest(10);
		f = fopen(path, "r");
		if (ioctl(fd, FIONREAD, &left) || !f || fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
			tap_bail("cannot look at a process");
		fclose(f);
	}
}

/* Half of the requests have been handed over when the peer is lost, half come after that: one line with their number
 * here, one at a filter in front. */
static void test_many_lost(void)
{
	enum { MANY = 120 }; /* a socket holds half of them */
	const char *down = socket_address("far"), *address = socket_address("mid");
	struct stage_options o = defaults();
	int mid_says = memfd_create("mid", 0), says = memfd_create("filter", 0), out = memfd_create("out", 0);
	int fds[2], rc;
	unsigned count[FRAME_TYPE_COUNT];
	char want[400];
	struct client c;
	pid_t far, mid, pid;

	if (pipe(fds))
		tap_bail("pipe");
	echo.waits = true;
	far = serve_at(down, NULL);
	echo.waits = false;
	o.peer_ns = 20000000000;
	o.connect = address;
	{
		struct stage_options m = o;

		m.listen = address;
		m.connect = down;
		echo.relay = true;
		mid = start(m, -1, -1, mid_says, true);
		pid = start(o, fds[0], out, says, true);
		echo.relay = false;
	}
	client_on(&c, fds[1]);
	say_hello(&c, "m");
	for (unsigned i = 0; i < MANY / 2; i++)
		ask(&c, i + 1, 1 << 30, 0);
	wait_read(fds[0], pid);
	rest(200);
	kill(mid, SIGSTOP);
	kill(far, SIGKILL);
	finish(far);
	for (unsigned i = MANY / 2; i < MANY; i++)
		ask(&c, i + 1, 1 << 30, 0);
	say_end(&c);
	client_close(&c);
	wait_read(fds[0], pid);
	close(fds[0]);
	kill(mid, SIGCONT);
	tap_is_int(finish(pid), DS_UNAVAILABLE, "many requests are lost with a peer of a peer: 69");
	tap_is_int(finish(mid), DS_UNAVAILABLE, "as there");
	count_output(out, count, &rc);
	tap_ok(rc == 0 && count[FRAME_ERROR] == MANY && count[FRAME_END] == 1, "each has its error");
	snprintf(want, sizeof want, "echo: the connection to '%s' broke off (%d requests)\n", down, MANY);
	tap_ok(is_line(mid_says, want), "one line says so");
	snprintf(want, sizeof want, "echo: '%s' says: the connection to '%s' broke off (%d requests)\n", address, down,
		MANY);
	tap_ok(is_line(says, want), "and one in front");
}

static void test_second_signal(void)
{
	const char *down = socket_address("far"), *address = socket_address("mid");
	pid_t far = serve_at(down, NULL), mid = relay_at(address, down, 30);
	struct client c;
	double t;

	client_open(&c, address);
	say_hello(&c, "m");
	if (write(c.fd, "\x9a\xa4" "DSF", 5) != 5) /* keeps the connection from being idle */
		tap_bail("write");
	rest(100);
	kill(far, SIGKILL);
	finish(far);
	rest(200);
	t = seconds();
	kill(mid, SIGTERM);
	rest(200);
	kill(mid, SIGTERM);
	tap_is_int(finish(mid), DS_UNAVAILABLE, "downstream lost, two signals: the code of the loss");
	tap_ok(seconds() - t < 1, "at once");
	client_close(&c);
}

/* ---- hand-over at the end ---- */

static void elsewhere(bool stays)
{
	const char *down = socket_address("far"), *address = socket_address("mid");
	struct stage_options o = defaults();
	int out = memfd_create("out", 0), rc = -1;
	unsigned count[FRAME_TYPE_COUNT];
	struct client c;
	pid_t far, mid;

	o.listen = down;
	o.output = "-";
	o.peer_ns = 20000000000;
	far = start(o, -1, out, -1, true);
	mid = relay_at(address, down, 0);
	client_open(&c, address);
	say_hello(&c, "m");
	rest(200);
	kill(far, SIGSTOP);
	for (int i = 0; i < 4; i++)
		say(&c, FRAME_TEXT, 5, 1 << 20);
	say_end(&c);
	listen_to(&c, 0, count, NULL);
	client_close(&c);
	kill(mid, SIGTERM);
	rest(700);
	if (stays) {
		tap_is_int(finish(mid), DS_TEMP, "a downstream that takes nothing: cut at the end of the drain time");
		kill(far, SIGKILL);
		finish(far);
		close(out);
		return;
	}
	tap_ok(waitpid(mid, &rc, WNOHANG) == 0, "a drained service waits for its downstream");
	kill(far, SIGCONT);
	tap_is_int(finish(mid), 0, "until all is handed over");
	tap_is_int(finish(far), 0, "the downstream ends well");
	count_output(out, count, &rc);
	tap_ok(rc == 0 && count[FRAME_TEXT] == 4, "with everything");
}

/* ---- peers that misbehave ---- */

static void test_error_without_stream(void)
{
	const char *down = socket_address("far"), *address = socket_address("mid");
	pid_t far = serve_at(down, NULL), mid = relay_at(address, down, 0);
	unsigned count[FRAME_TYPE_COUNT];
	struct client good, bad;
	uint64_t code = 0;
	int in = memfd_create("in", 0), rc, out = memfd_create("out", 0);

	client_open(&good, address);
	say_hello(&good, "m");
	ask(&good, 1, 2000, 0);
	listen_to(&good, FRAME_TOKEN, count, NULL);
	for (unsigned type = FRAME_DONE; type <= FRAME_ERROR; type++) {
		client_open(&bad, address);
		say_hello(&bad, "m");
		say(&bad, type, 0, 0);
		tap_ok(listen_to(&bad, FRAME_ERROR, count, &code) == 0 && code == DS_DATA,
			"'%s' without a stream ends the connection", frame_type_name(type));
		client_close(&bad);
	}
	tap_ok(listen_to(&good, FRAME_DONE, count, NULL) == 0 && count[FRAME_ERROR] == 0, "and no other");
	ask(&good, 2, 2, 0);
	tap_ok(listen_to(&good, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 2, "the chain still serves");
	client_close(&good);
	kill(mid, SIGTERM);
	tap_is_int(finish(mid), 0, "its middle is well");
	kill(far, SIGTERM);
	tap_is_int(finish(far), 0, "its end is well");
	client_on(&bad, in);
	say_hello(&bad, "m");
	say(&bad, FRAME_ERROR, 0, 0);
	lseek(in, 0, SEEK_SET);
	tap_is_int(finish(start(defaults(), in, out, -1, false)), DS_DATA, "a filter ends with the error's code");
	client_close(&bad);
	count_output(out, count, &rc);
	tap_ok(count[FRAME_ERROR] == 0 && count[FRAME_END] == 0, "and does not pass it on as its own");
}

static void test_incomplete(void)
{
	const char *address = socket_address("half");
	pid_t pid = serve_at(address, NULL);
	unsigned count[FRAME_TYPE_COUNT];
	struct client half, ended, whole, mute;
	uint64_t code = 0;

	client_open(&half, address);
	say_hello(&half, "m");
	ask_half(&half, 1);
	client_open(&ended, address);
	say_hello(&ended, "m");
	ask_half(&ended, 1);
	say_end(&ended);
	tap_ok(listen_to(&ended, FRAME_ERROR, count, &code) == 0 && code == DS_DATA, "END within a request: 65");
	client_open(&mute, address);
	tap_ok(listen_to(&half, FRAME_ERROR, count, &code) == 0 && code == DS_UNAVAILABLE,
		"silence within a request: 69");
	tap_ok(listen_to(&mute, FRAME_ERROR, count, &code) == 0 && code == DS_UNAVAILABLE, "no hello: 69");
	client_close(&half);
	client_close(&ended);
	client_close(&mute);
	kill(pid, SIGTERM);
	tap_is_int(finish(pid), 0, "the service is well");
	echo.waits = true;
	pid = serve_at(address, NULL);
	echo.waits = false;
	client_open(&whole, address);
	say_hello(&whole, "m");
	ask(&whole, 1, 1, 0);
	say_end(&whole);
	rest(1000);
	kill(pid, SIGTERM);
	tap_ok(listen_to(&whole, FRAME_ERROR, count, &code) == 0 && code == DS_TEMP,
		"a complete request that waits is not truncated, only cut at the end of the drain time");
	client_close(&whole);
	tap_is_int(finish(pid), DS_TEMP, "75");
}

static void test_no_reader(void)
{
	const char *down = socket_address("far"), *address = socket_address("mid");
	pid_t far = serve_at(down, NULL), mid;
	unsigned count[FRAME_TYPE_COUNT];
	struct client a, b;
	uint64_t code = 0;

	client_open(&a, down);
	client_open(&b, down);
	say_hello(&a, "m");
	say_hello(&b, "m");
	ask(&a, 1, 1 << 30, 1 << 20);
	rest(1500);
	tap_ok(listen_to(&a, 0, count, NULL) == DS_DATA && count[FRAME_TOKEN] < 20,
		"a client that does not read is dropped");
	ask(&b, 1, 3, 0);
	tap_ok(listen_to(&b, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 3, "another is served");
	client_close(&a);
	client_close(&b);
	mid = relay_at(address, down, 0);
	client_open(&a, address);
	say_hello(&a, "m");
	rest(100);
	kill(far, SIGSTOP);
	ask(&a, 1, 3, 0);
	for (int i = 0; i < 4; i++)
		say(&a, FRAME_TEXT, 0, 1 << 20);
	tap_ok(listen_to(&a, FRAME_ERROR, count, &code) == 0 && code == DS_UNAVAILABLE,
		"a downstream that neither reads nor speaks is lost");
	client_close(&a);
	tap_is_int(finish(mid), DS_UNAVAILABLE, "69");
	kill(far, SIGKILL);
	finish(far);
}

/* A sender that is left unread since our own downstream takes nothing cannot tell us from a dead peer otherwise. */
static void test_unread_is_told(void)
{
	const char *down = socket_address("far"), *address = socket_address("mid");
	pid_t far = serve_for(down, NULL, 30), mid = relay_at(address, down, 30), child;
	unsigned count[FRAME_TYPE_COUNT];
	struct client c;

	client_open(&c, address);
	say_hello(&c, "m");
	rest(100);
	kill(far, SIGSTOP);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		for (int i = 0; i < 24; i++)
			say(&c, FRAME_TEXT, 0, 1 << 20);
		say_end(&c);
		_exit(0);
	}
	alarm(20);
	tap_ok(listen_to(&c, FRAME_STAT, count, NULL) == 0 && count[FRAME_STAT] == 1, "who is left unread hears of us");
	tap_ok(listen_to(&c, FRAME_STAT, count, NULL) == 0 && count[FRAME_STAT] == 1, "and again");
	alarm(0);
	kill(far, SIGCONT);
	tap_ok(listen_to(&c, 0, count, NULL) == 0 && count[FRAME_END] == 1,
		"then it is read to its end");
	waitpid(child, NULL, 0);
	client_close(&c);
	kill(mid, SIGTERM);
	finish(mid);
	kill(far, SIGTERM);
	finish(far);
}

/* Who is behind with its reading when its work is cut is told so, too: the error stands behind what it has not read. */
static void test_drain_behind(void)
{
	const char *address = socket_address("behind");
	pid_t pid = serve_for(address, NULL, 20);
	unsigned count[FRAME_TYPE_COUNT];
	struct client behind;
	uint64_t code = 0;

	client_open(&behind, address);
	say_hello(&behind, "m");
	ask(&behind, 1, 1 << 30, 1 << 20);
	listen_to(&behind, FRAME_TOKEN, count, NULL);
	kill(pid, SIGTERM);
	rest(2500); /* the drain time is 2 s */
	tap_ok(listen_to(&behind, 0, count, &code) == DS_DATA && code == DS_TEMP && count[FRAME_ERROR] == 1,
		"who is behind with its reading when its work is cut hears of it: 75");
	client_close(&behind);
	tap_is_int(finish(pid), DS_TEMP, "75");
}

/* A cancel may cross its request's last frame. */
static void test_late_cancel(void)
{
	unsigned count[FRAME_TYPE_COUNT];
	struct chain c;

	chain_start(&c);
	ask(&c.a, 1, 3, 0);
	listen_to(&c.a, FRAME_DONE, count, NULL);
	say(&c.a, FRAME_CANCEL, 1, 0);
	say(&c.a, FRAME_CANCEL, 2, 0); /* never heard of */
	say_end(&c.a);
	alarm(20);
	tap_ok(listen_to(&c.a, 0, count, NULL) == 0 && count[FRAME_END] == 1,
		"nothing is awaited for a cancel too late");
	for (uint64_t id = 1; id <= 2; id++) {
		ask(&c.b, id, 3, 0);
		tap_ok(listen_to(&c.b, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 3,
			"nor is its id in use");
	}
	alarm(0);
	chain_stop(&c);
}

/* A client that uses a name twice is no reason to give up the connection that all share. */
static void test_name_twice(void)
{
	unsigned count[FRAME_TYPE_COUNT];
	struct chain c;
	uint64_t code = 0;

	chain_start(&c);
	ask(&c.a, 1, 10000, 0);
	listen_to(&c.a, FRAME_TOKEN, count, NULL);
	ask(&c.a, 1, 3, 0);
	tap_ok(listen_to(&c.a, FRAME_ERROR, count, &code) == 0 && code == DS_DATA && count[FRAME_DONE] == 0,
		"a name that is in use downstream ends the stream, here");
	ask(&c.b, 2, 3, 0);
	tap_ok(listen_to(&c.b, FRAME_DONE, count, NULL) == 0 && count[FRAME_TOKEN] == 3, "others are served");
	chain_stop(&c);
}

/* ---- one stream ---- */

static void test_reset(void)
{
	const char *address = free_tcp();
	struct stage_options o = defaults();
	struct client c;
	double t;
	pid_t pid;
	unsigned count[FRAME_TYPE_COUNT];

	o.listen = address;
	o.output = "-";
	o.peer_ns = 5000000000;
	pid = start(o, -1, -1, -1, true);
	client_open(&c, address);
	say_hello(&c, "m");
	ask(&c, 1, 3, 0);
	rest(200);
	setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &(struct linger){ .l_onoff = 1 }, sizeof(struct linger));
	t = seconds();
	client_close(&c);
	tap_is_int(finish(pid), DS_DATA, "a reset connection is truncation: 65");
	tap_ok(seconds() - t < 1, "told at once");
	address = free_tcp();
	pid = start(o, -1, -1, -1, true);
	client_open(&c, address);
	say_hello(&c, "m");
	ask(&c, 1, 3, 0);
	say_end(&c);
	t = seconds();
	tap_ok(listen_to(&c, 0, count, NULL) == 0 && count[FRAME_END] == 1, "-l -o: END for the client");
	client_close(&c);
	tap_is_int(finish(pid), 0, "the end of the one stream");
	tap_ok(seconds() - t < 1, "comes at once");
}

static void test_failed_request_in_file(void)
{
	char dir[] = "/tmp/dsutils-stage-XXXXXX", file[100];
	struct stage_options o = defaults();
	int in = memfd_create("in", 0), fd, rc = -1;
	unsigned count[FRAME_TYPE_COUNT] = { 0 };
	struct ds_err err;
	struct client c;

	if (!mkdtemp(dir))
		tap_bail("mkdtemp");
	snprintf(file, sizeof file, "%s/out", dir);
	o.output = file;
	client_on(&c, in);
	say_hello(&c, "m");
	ask(&c, 1, 3, 0);
	meta_reset(c.b);
	meta_put_uint(c.b, "bad", 1);
	frame_write(c.w, FRAME_REQUEST, 0, 2, c.b, NULL, 0, false, &err);
	say_end(&c);
	lseek(in, 0, SEEK_SET);
	tap_is_int(finish(start(o, in, -1, -1, false)), DS_DATA, "-o FILE, a request fails: 65");
	client_close(&c);
	fd = open(file, O_RDONLY);
	if (fd >= 0)
		count_output(fd, count, &rc);
	tap_ok(rc == 0 && count[FRAME_DONE] == 1 && count[FRAME_ERROR] == 1 && count[FRAME_END] == 1,
		"the file is there, as the stream is complete");
	unlink(file);
	rmdir(dir);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(socket_dir))
		tap_bail("mkdtemp");
	test_unsent_requests();
	test_requests_cut_by_loss();
	test_filter_loss();
	test_many_lost();
	test_second_signal();
	elsewhere(false);
	elsewhere(true);
	test_error_without_stream();
	test_incomplete();
	test_no_reader();
	test_unread_is_told();
	test_late_cancel();
	test_name_twice();
	test_drain_behind();
	test_reset();
	test_failed_request_in_file();
	rmdir(socket_dir);
	return tap_done();
}
