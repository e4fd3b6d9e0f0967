/* Addresses: parsing, listening (stale and live unix sockets, TCP beyond loopback, inherited sockets), connecting. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "net/addr.h"
#include "tap.h"

static void test_parse(void)
{
	static const struct { const char *text; int rc; enum addr_kind kind; } cases[] = {
		{ "-", 0, ADDR_STDIO },
		{ "unix:/tmp/x", 0, ADDR_UNIX },
		{ "unix:", DS_USAGE, 0 },
		{ "unix:0123456789012345678901234567890123456789012345678901234567890123456789"
		  "0123456789012345678901234567890123456789", DS_USAGE, 0 },
		{ "tcp:localhost:80", 0, ADDR_TCP },
		{ "tcp:[::1]:80", 0, ADDR_TCP },
		{ "tcp:127.0.0.1:0", 0, ADDR_TCP },
		{ "tcp:::1:80", DS_USAGE, 0 },
		{ "tcp:host", DS_USAGE, 0 },
		{ "tcp::80", DS_USAGE, 0 },
		{ "tcp:host:65536", DS_USAGE, 0 },
		{ "tcp:host:http", DS_USAGE, 0 },
		{ "tcp:host:", DS_USAGE, 0 },
		{ "fd:3", 0, ADDR_FD },
		{ "fd:-1", DS_USAGE, 0 },
		{ "fd:x", DS_USAGE, 0 },
		{ "", DS_USAGE, 0 },
		{ "/tmp/x", DS_USAGE, 0 },
	};
	struct addr a;
	struct ds_err err;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int rc = addr_parse(cases[i].text, &a, &err);

		tap_ok(rc == cases[i].rc && (rc || a.kind == cases[i].kind), "address '%.30s'", cases[i].text);
	}
	tap_ok(!addr_parse("tcp:[::1]:8080", &a, &err) && !strcmp(a.host, "::1") && !strcmp(a.port, "8080"),
		"v6 parts");
}

static void test_unix(const char *dir)
{
	char text[200];
	struct addr a;
	struct ds_err err;
	struct stat st;
	int l = -1, other, c, file;

	snprintf(text, sizeof text, "unix:%s/s", dir);
	tap_ok(!addr_parse(text, &a, &err) && !addr_listen(&a, false, &l, &err), "listens");
	tap_ok(addr_listen(&a, false, &other, &err) == DS_CONFIG && strstr(err.text, "another process"),
		"a live socket is refused");
	tap_ok(!addr_connect(&a, 1000000000, &c, &err) && (fcntl(c, F_GETFL) & O_NONBLOCK) &&
		(fcntl(c, F_GETFD) & FD_CLOEXEC), "connects");
	close(c);
	close(l); /* as by kill -9: the file stays */
	tap_ok(addr_connect(&a, 20000000, &c, &err) == DS_UNAVAILABLE, "nobody there: 69");
	tap_ok(!addr_listen(&a, false, &l, &err), "a stale socket is replaced");
	addr_unlisten(&a, l);
	tap_ok(stat(a.path, &st) != 0, "and removed at the end");
	file = open(a.path, O_CREAT | O_WRONLY, 0600);
	tap_ok(addr_listen(&a, false, &l, &err) == DS_CONFIG && stat(a.path, &st) == 0, "a file is not replaced");
	close(file);
	unlink(a.path);
}

static void *listen_later(void *arg)
{
	static int l;
	struct ds_err err;

	nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
	if (addr_listen(arg, false, &l, &err))
		l = -1;
	return &l;
}

static void test_order(const char *dir)
{
	char text[200];
	struct addr a;
	struct ds_err err;
	pthread_t t;
	void *l;
	int c;

	snprintf(text, sizeof text, "unix:%s/later", dir);
	addr_parse(text, &a, &err);
	pthread_create(&t, NULL, listen_later, &a);
	tap_ok(!addr_connect(&a, 5000000000, &c, &err), "a service that starts later is waited for");
	pthread_join(t, &l);
	close(c);
	addr_unlisten(&a, *(int *)l);
}

static void test_tcp(void)
{
	struct addr a, b;
	struct ds_err err;
	char text[300];
	int l = -1, c;

	tap_ok(!addr_parse("tcp:127.0.0.1:0", &a, &err) && !addr_listen(&a, false, &l, &err), "tcp on loopback");
	addr_local(l, text, sizeof text);
	tap_ok(!strncmp(text, "tcp:127.0.0.1:", 14) && !addr_parse(text, &b, &err) && atoi(b.port) > 0,
		"its port is known");
	tap_ok(!addr_connect(&b, 1000000000, &c, &err), "connects");
	close(c);
	addr_unlisten(&a, l);
	tap_ok(!addr_parse("tcp:0.0.0.0:0", &a, &err) && addr_listen(&a, false, &l, &err) == DS_CONFIG &&
		strstr(err.text, "--insecure"), "beyond loopback it takes a word");
	tap_ok(!addr_parse("tcp:no-such-host.invalid:1", &a, &err) && addr_connect(&a, 1, &c, &err) != 0,
		"an unknown host");
}

static void test_inherited(void)
{
	struct addr a, b;
	struct ds_err err;
	char text[64];
	int l, m, sv[2], spare = open("/dev/null", O_RDONLY); /* 3, which the listener must not be */

	addr_parse("tcp:127.0.0.1:0", &a, &err);
	if (addr_listen(&a, false, &l, &err))
		tap_bail("%s", err.text);
	snprintf(text, sizeof text, "fd:%d", l);
	tap_ok(!addr_parse(text, &b, &err) && !addr_listen(&b, false, &m, &err) && m == l, "fd:N is taken as it is");
	socketpair(AF_UNIX, SOCK_STREAM, 0, sv);
	snprintf(text, sizeof text, "fd:%d", sv[0]);
	tap_ok(!addr_parse(text, &b, &err) && addr_listen(&b, false, &m, &err) == DS_CONFIG,
		"a socket that does not listen is refused");
	tap_ok(!addr_connect(&b, 1, &m, &err) && m == sv[0], "but can be connected by");
	dup2(l, 3);
	snprintf(text, sizeof text, "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
	setenv("LISTEN_FDS", "1", 1);
	addr_parse("unix:/nonexistent/x", &b, &err);
	tap_ok(!addr_listen(&b, false, &m, &err) && m == 3 && !getenv("LISTEN_FDS"), "LISTEN_FDS");
	addr_unlisten(&b, m);
	close(sv[0]);
	close(sv[1]);
	if (spare != 3)
		close(spare);
}

int main(void)
{
	char dir[] = "/tmp/dsutils-net-XXXXXX";

	if (!mkdtemp(dir))
		tap_bail("mkdtemp");
	test_parse();
	test_unix(dir);
	test_order(dir);
	test_tcp();
	test_inherited();
	rmdir(dir);
	return tap_done();
}
