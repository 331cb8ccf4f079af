//! Programs that people use work as in a local directory.

use std::fs;

use crate::harness::{Cluster, Spec, shell};

#[test]
fn git_clones_repacks_and_checks_a_repository() {
    let cluster = Cluster::mounted();
    shell(
        &cluster.root(),
        r#"
        export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org
        export GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
        git init -q -b main origin
        cd origin
        for commit in 1 2 3 4 5; do
            mkdir -p dir$commit/deeper
            for file in $(seq 40); do
                seq $((commit * 1000 + file)) > dir$commit/deeper/file$file
                echo "$commit" >> shared
            done
            ln -sf shared link$commit
            git add -A
            git commit -q -m "commit $commit"
        done
        cd ..
        git clone -q origin clone
        git clone -q --no-local --bare origin bare.git
        cd clone
        git fsck --full --strict
        git gc -q --aggressive --prune=now
        git fsck --full
        git checkout -q -b topic HEAD~2
        echo change >> shared
        git commit -qam change
        git merge -q -X theirs main -m merge
        git push -q origin topic
        git -C ../origin fsck --full
        git -C ../bare.git fsck --full
        test -z "$(git status --porcelain)"
        git worktree add -q ../tree main
        diff -r --exclude=.git ../tree ../origin
        "#,
    );
    cluster.finish();
}

#[test]
fn tar_and_rsync_copy_a_tree_without_a_difference() {
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    let local = cluster.dir.join("local");
    fs::create_dir(&local).unwrap();
    shell(
        &local,
        r#"
        mkdir tree && cd tree
        for dir in a b/c d/e/f; do
            mkdir -p $dir
            for file in $(seq 30); do head -c $((file * 977)) /dev/urandom > $dir/file$file; done
        done
        ln a/file1 b/hard; ln a/file1 d/e/hard
        ln -s ../a/file2 b/soft; ln -s /nowhere/at/all dangling
        mkfifo fifo; mknod null c 1 3
        truncate -s 3M sparse; printf x | dd of=sparse bs=1 seek=2000000 conv=notrunc status=none
        chmod 4755 a/file3; chmod 2775 b; chmod 1777 d; chown 1234:4321 a/file4
        setfattr -n user.colour -v red a/file5
        setfattr -n trusted.secret -v 1 b/c
        setfacl -m u:1234:rw a/file6; setfacl -d -m g:4321:rx b
        touch -h -d '2001-02-03 04:05:06.123456789' b/soft; touch -d '1999-12-31 23:59:59.5' a/file7
        "#,
    );
    let script = format!(
        r#"
        compare() {{
            test -z "$(rsync -aHAXnic --delete "$1"/ "$2"/ | tee /dev/stderr)"
            test -z "$(rsync -aHAXnic --delete "$2"/ "$1"/ | tee /dev/stderr)"
        }}
        rsync -aHAX {local}/tree/ {first}/by-rsync/
        compare {local}/tree {first}/by-rsync
        compare {local}/tree {second}/by-rsync
        rsync -aHAX {second}/by-rsync/ {local}/back/
        compare {local}/tree {local}/back
        mkdir {first}/by-tar
        tar -C {local}/tree --xattrs --acls --sparse -cf - . | tar -C {first}/by-tar --xattrs --xattrs-include='*' --acls -xpf -
        compare {local}/tree {second}/by-tar
        cp -a {first}/by-tar {second}/by-cp
        compare {local}/tree {first}/by-cp
        rm -rf {first}/by-cp {second}/by-tar
        test "$(ls -A {first})" = by-rsync
        "#,
        local = local.display(),
        first = cluster.path(0).display(),
        second = cluster.path(1).display(),
    );
    shell(&cluster.dir, &script);
    cluster.finish();
}

#[test]
fn sqlite_keeps_its_guarantees_in_every_journal_mode() {
    let cluster = Cluster::mounted();
    shell(
        &cluster.root(),
        r#"
        for mode in delete truncate persist wal; do
            sqlite3 $mode.db "pragma journal_mode=$mode; create table t(id integer primary key, v text);" > /dev/null
            for batch in 1 2 3 4 5; do
                sqlite3 $mode.db "begin; with recursive n(i) as (select 1 union all select i+1 from n where i<400)
                    insert into t(v) select hex(randomblob(50)) from n; commit;"
                sqlite3 $mode.db "begin; delete from t where id % 7 = $batch; rollback; delete from t where id % 11 = $batch;"
            done
            test "$(sqlite3 $mode.db 'pragma integrity_check')" = ok
            sqlite3 $mode.db "vacuum; create index i on t(v);"
            test "$(sqlite3 $mode.db 'select count(*) > 1000 from t; pragma integrity_check')" = "1
ok"
        done
        # Two writers at once: locks keep them apart.
        sqlite3 both.db "create table t(v);"
        for who in a b; do
            (for i in $(seq 30); do sqlite3 -cmd '.timeout 60000' both.db "insert into t values('$who$i');"; done) &
        done
        wait
        test "$(sqlite3 both.db 'select count(*) from t; pragma integrity_check')" = "60
ok"
        "#,
    );
    cluster.finish();
}

#[test]
fn cargo_builds_and_tests_a_crate() {
    let cluster = Cluster::mounted();
    shell(
        &cluster.root(),
        r#"
        export CARGO_TARGET_DIR="$PWD/target"
        unset RUSTFLAGS RUSTDOCFLAGS CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER
        mkdir -p sample/src sample/tests
        cd sample
        printf '[package]\nname = "sample"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
        printf 'pub fn add(a: u32, b: u32) -> u32 { a + b }\n#[test] fn adds() { assert_eq!(add(2, 2), 4); }\n' > src/lib.rs
        printf 'fn main() { println!("{}", sample::add(40, 2)); }\n' > src/main.rs
        printf '#[test] fn outside() { assert_eq!(sample::add(1, 2), 3); }\n' > tests/t.rs
        cargo build -q --offline
        test "$(target/debug/sample 2>/dev/null || "$CARGO_TARGET_DIR"/debug/sample)" = 42
        cargo test -q --offline
        printf '// changed\n' >> src/lib.rs
        cargo build -q --offline
        "$CARGO_TARGET_DIR"/debug/sample
        "#,
    );
    cluster.finish();
}

#[test]
fn many_small_files_are_listed_and_removed() {
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    let script = format!(
        r#"
        mkdir {first}/many
        cd {first}/many
        seq -f 'name-%06.0f' 20000 | xargs touch
        test "$(ls | wc -l)" = 20000
        test "$(ls -U {second}/many | sort -u | wc -l)" = 20000
        test "$(find {second}/many -type f -size 0 | wc -l)" = 20000
        cd /
        rm -r {second}/many
        test -z "$(ls -A {first})"
        "#,
        first = cluster.path(0).display(),
        second = cluster.path(1).display(),
    );
    shell(&cluster.dir, &script);
    cluster.finish();
}

/// What the PostgreSQL scripts share. Its data lie in `$1`, its socket is local.
const POSTGRES: &str = r#"
    programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
    programs=${programs:-$(dirname "$(command -v pg_ctl)")}
    as() { setpriv --reuid=postgres --regid=postgres --init-groups \
        env -i PATH="$programs:/usr/bin:/bin" LC_ALL=C HOME=/ PGHOST="$socket" PGDATABASE=postgres "$@" < /dev/null; }
    start() { as pg_ctl -D "$data" -l "$log" -w -t 100 -o "-k '$socket' -c listen_addresses=" start > "$log.ctl" 2>&1 \
        || { cat "$log.ctl" "$log"; exit 1; }; }
    stop() { as pg_ctl -D "$data" -w -t 100 -m "$1" stop > /dev/null; }
    running() { as pg_ctl -D "$data" status > /dev/null; }
    trap 'if running; then stop immediate; fi' EXIT
"#;

#[test]
fn postgresql_crashes_and_moves_to_another_client_without_loss() {
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    let script = |mount: usize, text: &str| {
        let (dir, root) = (cluster.dir.display(), cluster.path(mount));
        let data = root.join("pg/data");
        let paths = format!("socket={dir}/pg log={dir}/pg/log data={}", data.display());
        shell(&cluster.dir, &format!("{paths}\n{POSTGRES}\n{text}"));
    };
    script(
        0,
        r#"
        chmod 755 .
        install -d -o postgres -m 700 "$socket" "$(dirname "$data")"
        as initdb -D "$data" -A trust --no-locale --data-checksums > "$log.init" 2>&1 || { cat "$log.init"; exit 1; }
        "#,
    );
    script(
        0,
        r#"
        start
        as pgbench -q -i -s 1 > /dev/null 2>&1
        as pgbench -n -c 4 -t 50 > /dev/null
        as psql -q -c "create index on pgbench_history(aid)" -c "vacuum pgbench_accounts"
        stop immediate
        start
        test "$(as psql -At -c 'select count(*) from pgbench_history')" = 200
        stop fast
        as pg_checksums --check -D "$data" > /dev/null
        "#,
    );
    script(
        1,
        r#"
        start
        test "$(as psql -At -c 'select count(*) from pgbench_history')" = 200
        as pgbench -n -c 2 -t 20 > /dev/null
        test "$(as psql -At -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
            (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)')" = "t|t"
        stop fast
        as pg_checksums --check -D "$data" > /dev/null
        "#,
    );
    cluster.finish();
}
