//! What the metadata half may ask of this one: the only way from there into this module.

use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use env::{Env, IoBuf};
use proto::mds::{DataAttr, LayoutSlice, PagInfo, ZoneList};
use proto::prealloc::Stream;
use types::{
    Attr, BlockRange, ClientId, Duration, Fault, Ino, Instant, PagId, Rights, Segment, ServerId,
    Uuid,
};

use super::{DataConfig, DataContext, File, MoveStep, Room};
use crate::api::{DeviceStatus, ReadData, Whence};
use crate::boundary::{CommitCounts, DataHalf, FileContent, Lies, Offer, Rpc, Unsaved};

impl DataHalf for DataContext {
    type File = File;

    fn open(
        env: Env,
        config: DataConfig,
        fs: Uuid,
        offers: Vec<Offer>,
        rpc: Rc<dyn Rpc>,
    ) -> impl Future<Output = Result<Rc<Self>, String>> {
        DataContext::open(env, config, fs, offers, rpc)
    }

    fn file(self: &Rc<Self>, ino: Ino, attr: &Attr) -> Rc<Self::File> {
        File::new(self, ino, attr)
    }

    fn sync_all(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>> {
        DataContext::sync_all(self)
    }

    fn commit_unmapped(self: &Rc<Self>, patience: Duration) -> impl Future<Output = ()> {
        DataContext::commit_unmapped(self, patience)
    }

    fn evicted(self: &Rc<Self>, server: ServerId, new_client: ClientId) {
        DataContext::evicted(self, server, new_client)
    }

    fn release_files(&self) {
        DataContext::release_files(self)
    }

    fn is_settled(&self) -> bool {
        DataContext::is_settled(self)
    }

    fn has_unreported_loss(&self) -> bool {
        DataContext::has_unreported_loss(self)
    }

    fn unsaved(&self) -> Vec<Ino> {
        DataContext::unsaved(self)
    }

    fn unsaved_since(&self) -> Option<Instant> {
        DataContext::unsaved_since(self)
    }

    fn dirty_bytes(&self) -> u64 {
        DataContext::dirty_bytes(self)
    }

    fn writes_in_flight(&self) -> usize {
        DataContext::writes_in_flight(self)
    }

    fn commit_counts(&self) -> CommitCounts {
        // A file that was dropped stays active until it would have been due.
        let is_open = |file: &&Rc<File>| !file.state.borrow().is_settled();
        let queue = self.active.borrow().values().filter(is_open).count();
        let mut sum = CommitCounts { queue, ..CommitCounts::default() };
        for pipeline in self.pipelines.values() {
            let counts = pipeline.borrow().counts(queue);
            sum.requests += counts.requests;
            sum.files += counts.files;
            sum.aging += counts.aging;
            sum.waiting += counts.waiting;
            sum.ready += counts.ready;
            sum.sending += counts.sending;
            sum.tasks += counts.tasks;
            sum.degree = sum.degree.max(counts.degree);
        }
        sum
    }

    fn most_silent(&self) -> Option<(String, Duration)> {
        DataContext::most_silent(self)
    }

    fn zones_reported(self: &Rc<Self>, server: ServerId, list: &ZoneList) {
        DataContext::zones_reported(self, server, list)
    }

    fn zones_offered(self: &Rc<Self>, server: ServerId, zones: &[PagInfo]) {
        DataContext::zones_offered(self, server, zones)
    }

    fn any_out_of_service(&self) -> bool {
        DataContext::any_out_of_service(self)
    }

    fn shun_zones(&self, zones: BTreeSet<PagId>) {
        DataContext::shun_zones(self, zones)
    }

    fn device_silent_for(&self, patience: Duration) -> impl Future<Output = ()> {
        DataContext::device_silent_for(self, patience)
    }

    fn zone_silent_for(
        &self,
        zones: Vec<PagId>,
        patience: Duration,
    ) -> impl Future<Output = String> {
        DataContext::zone_silent_for(self, zones, patience)
    }

    fn devices(&self) -> Vec<DeviceStatus> {
        DataContext::devices(self)
    }

    fn give_up(&self, operation: u64) {
        DataContext::give_up(self, operation)
    }

    fn leave_targets(&self) -> impl Future<Output = ()> {
        DataContext::leave_targets(self)
    }

    fn pool_blocks(&self) -> (u64, u64) {
        DataContext::pool_blocks(self)
    }

    fn blocks_in_windows(&self) -> u64 {
        self.each_class().iter().map(|class| class.pool.in_windows()).sum()
    }

    fn blocks_in_standby(&self) -> u64 {
        self.each_class().iter().map(|class| class.pool.standby()).sum()
    }

    fn grants(&self) -> (u64, u64) {
        (self.transfers.grants.get(), self.transfers.rode.get())
    }

    fn unused_blocks(&self) -> u64 {
        DataContext::unused_blocks(self)
    }

    fn is_pool_idle(&self) -> bool {
        DataContext::is_pool_idle(self)
    }

    fn pool_transfers(&self) -> u64 {
        DataContext::pool_transfers(self)
    }

    fn pool_idle(&self) -> impl Future<Output = ()> {
        DataContext::pool_idle(self)
    }

    fn return_pool(&self) -> impl Future<Output = ()> {
        DataContext::return_pool(self)
    }

    fn return_unused(&self, server: ServerId) -> impl Future<Output = ()> {
        DataContext::return_unused(self, server)
    }
}

impl FileContent for File {
    fn rights_acquired(&self, rights: Rights, attr: &Attr, layout: Option<LayoutSlice>) {
        File::rights_acquired(self, rights, attr, layout)
    }

    fn range_acquired(&self, attr: &Attr, range: BlockRange, layout: Option<&LayoutSlice>) {
        File::range_acquired(self, attr, range, layout)
    }

    fn rights_lost(&self, rights_left: Rights) {
        File::rights_lost(self, rights_left)
    }

    fn range_lost(&self, range: BlockRange) {
        File::range_lost(self, range)
    }

    fn holds(&self, rights: Rights) -> bool {
        File::holds(self, rights)
    }

    fn holds_ranges(&self) -> bool {
        File::holds_ranges(self)
    }

    fn read(
        self: &Rc<Self>,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<ReadData, Fault>> {
        File::read(self, offset, len)
    }

    fn write(
        self: &Rc<Self>,
        offset: Option<u64>,
        data: IoBuf,
        len: usize,
        stream: Option<Stream>,
    ) -> impl Future<Output = Result<(u64, u32), Fault>> {
        File::write(self, offset, data, len, stream)
    }

    fn set_size(self: &Rc<Self>, size: u64) -> impl Future<Output = Result<(), Fault>> {
        File::set_size(self, size)
    }

    fn fallocate(
        self: &Rc<Self>,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<(), Fault>> {
        File::fallocate(self, mode, offset, len)
    }

    fn seek(
        self: &Rc<Self>,
        offset: u64,
        whence: Whence,
    ) -> impl Future<Output = Result<u64, Fault>> {
        File::seek(self, offset, whence)
    }

    fn layout(
        self: &Rc<Self>,
    ) -> impl Future<Output = Result<Vec<(Segment, Option<String>)>, Fault>> {
        File::explained_layout(self)
    }

    fn inline_len(self: &Rc<Self>) -> impl Future<Output = Result<usize, Fault>> {
        File::inline_len(self)
    }

    fn move_blocks(
        self: &Rc<Self>,
        zones: &BTreeSet<PagId>,
        blocks: (u64, u64),
        room: &mut Room,
    ) -> impl Future<Output = Result<MoveStep, Fault>> {
        File::move_blocks(self, zones, blocks, room)
    }

    fn find_room(self: &Rc<Self>, room: &mut Room) -> impl Future<Output = Result<(), Fault>> {
        File::find_room(self, room)
    }

    fn zones_allowed(&self) -> Vec<PagId> {
        File::zones_allowed(self)
    }

    fn generation(&self) -> u64 {
        File::generation(self)
    }

    fn lies(&self) -> Lies {
        File::lies(self)
    }

    fn zero_tail(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>> {
        File::zero_tail(self)
    }

    fn size(&self) -> u64 {
        File::size(self)
    }

    fn overlay(&self, attr: &mut Attr) {
        File::overlay(self, attr)
    }

    fn data_attr(&self) -> DataAttr {
        File::data_attr(self)
    }

    fn apply_server_attr(&self, attr: &Attr) {
        File::apply_server_attr(self, attr)
    }

    fn before_times_set(self: &Rc<Self>) -> impl Future<Output = ()> {
        File::before_times_set(self)
    }

    fn unsaved(&self) -> Unsaved {
        File::unsaved(self)
    }

    fn is_clean(&self) -> bool {
        File::is_clean(self)
    }

    fn is_settled(&self) -> bool {
        File::is_settled(self)
    }

    fn is_settled_in(&self, range: BlockRange) -> bool {
        File::is_settled_in(self, range)
    }

    fn has_given_up(&self) -> bool {
        self.given_up.is_any()
    }

    fn given_up_ended(self: &Rc<Self>) -> impl Future<Output = ()> {
        self.given_up.ended()
    }

    fn fsync(self: &Rc<Self>, datasync: bool) -> impl Future<Output = Result<bool, Fault>> {
        File::fsync(self, datasync)
    }

    fn commit_accepted(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>> {
        File::commit_accepted(self)
    }

    fn flush(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>> {
        File::flush(self)
    }

    fn flush_range(self: &Rc<Self>, range: BlockRange) -> impl Future<Output = Result<(), Fault>> {
        File::flush_range(self, range)
    }

    fn discard_for_recall(self: &Rc<Self>) {
        File::discard_for_recall(self)
    }

    fn pause(self: &Rc<Self>) -> impl Future<Output = ()> {
        File::pause(self)
    }

    fn resume(self: &Rc<Self>) {
        File::resume(self)
    }

    fn handle_closed(&self, handle: u64) {
        File::handle_closed(self, handle)
    }

    fn last_handle_closed(self: &Rc<Self>) {
        File::last_handle_closed(self)
    }

    fn drop_all(self: &Rc<Self>, lost: bool) {
        File::drop_all(self, lost)
    }

    fn detach(self: &Rc<Self>) {
        File::detach(self)
    }

    fn error_seq(&self) -> u64 {
        File::error_seq(self)
    }

    fn has_unreported_loss(&self) -> bool {
        File::has_unreported_loss(self)
    }

    fn acknowledge_loss(&self) -> bool {
        File::acknowledge_loss(self)
    }

    fn report_lost_commit(&self) {
        File::report_lost_commit(self)
    }

    fn report_lost_pages(&self) {
        File::report_lost_pages(self)
    }
}
